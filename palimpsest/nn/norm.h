#pragma once

#include "palimpsest/nn/batch_norm_state.h"
#include "palimpsest/nn/strategy.h"
#include "palimpsest/ops/abn_conv.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace palimpsest::nn {

/// What all normalizations of a model have in common; every block takes one.
struct NormOptions {
  Strategy strategy = Strategy::kInplace2;
  Activation activation = Activation::kLeakyReLU;
  double activation_param = 0.01;  ///< leaky ReLU's slope or ELU's alpha
  bool in_place = true;            ///< false: keep the input intact, for an input that has a second reader

  /// The same without an activation: the last normalization before a residual addition.
  NormOptions identity() const;
  /// The same with a fresh output.
  NormOptions out_of_place() const;
};

/// Normalization + activation by strategy: `standard` is libtorch's batch norm, then the activation in place
/// (what a careful libtorch user writes: keeps x and z); the others are the fused layer, which keeps one
/// tensor. The same gradients, the same state-dict keys and the same requirements of the input, so that one
/// word switches a model. A pair of strategy and activation that cannot be exact is refused at construction
/// (check_pair).
class NormImpl : public BatchNormState<NormImpl> {
 public:
  NormImpl(int64_t channels, const NormOptions& options);

  /// act(bn(x)): (N, C, ...) to the same shape; overwrites x if the strategy and the options say so: see
  /// InPlaceABN. For a reader that keeps what it reads, prefer forward_into.
  at::Tensor forward(at::Tensor x);

  /// conv(act(bn(x))): in one node of the graph, so that the convolution does not keep its input, where the
  /// strategy makes that again.
  at::Tensor forward_into(at::Tensor x, torch::nn::Conv2d& conv);

  /// act(bn(x) + residual) in one node, over x; `standard` is the plain layers. `relu_residual`:
  /// max(residual, 0) is added (not by `standard`). Replaces the module's own activation.
  at::Tensor forward_sum(at::Tensor x, const at::Tensor& residual, bool relu_residual, Activation activation,
                         double activation_param);

  /// The options for an operator that normalizes on its way (ops::dense_block, ops::concat_abn_conv). Counts the batch, as
  /// forward does.
  ops::AbnOptions begin_operator();

  void pretty_print(std::ostream& stream) const override;

  Strategy strategy;  ///< may be changed at any time between forward passes

 private:
  at::Tensor forward_standard(const at::Tensor& x, const ops::AbnOptions& layer);
  ops::Saved saved_by(Activation activation) const;
};

TORCH_MODULE(Norm);

}  // namespace palimpsest::nn
