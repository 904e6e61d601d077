#pragma once

#include "palimpsest/nn/batch_norm_state.h"
#include "palimpsest/nn/strategy.h"

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
/// (what a careful libtorch user writes: keeps x and z); `inplace_2` is InPlaceABN (keeps z). The same
/// gradients, the same state-dict keys and the same requirements of the input, so that one word switches a
/// model.
class NormImpl : public BatchNormState<NormImpl> {
 public:
  NormImpl(int64_t channels, const NormOptions& options);

  /// (N, C, ...) to the same shape; overwrites x if the strategy and the options say so: see InPlaceABN.
  at::Tensor forward(at::Tensor x);
  void pretty_print(std::ostream& stream) const override;

  Strategy strategy;  ///< may be changed at any time between forward passes
};

TORCH_MODULE(Norm);

}  // namespace palimpsest::nn
