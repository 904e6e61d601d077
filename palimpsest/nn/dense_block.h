#pragma once

#include "palimpsest/nn/dense_strategy.h"
#include "palimpsest/nn/norm.h"
#include "palimpsest/ops/dense_block.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

namespace palimpsest::nn {

struct DenseBlockOptions {
  int64_t in = 0;          ///< channels of the input
  int64_t layers = 0;      ///< at least 1
  int64_t growth = 0;      ///< channels that each layer adds, k
  int64_t bottleneck = 4;  ///< channels of the 1x1 convolution, in multiples of k
  DenseStrategy dense_strategy = DenseStrategy::kFused;
  /// Activation of all normalizations; the strategy is that of the normalization behind the 1x1 convolution.
  NormOptions norm;
  bool pre_activation = true;  ///< see ops/dense_block.h
  double dropout = 0;          ///< of the new features, in training mode; in [0, 1)
};

/// One layer: norm1, conv1 (1x1), norm2, conv2 (3x3) under torchvision's names; see DenseBlock.
class DenseLayerImpl : public torch::nn::Module {
 public:
  DenseLayerImpl(int64_t channels, const DenseBlockOptions& options);

  /// The k new features from those of all layers before, by any strategy but `fused`.
  at::Tensor forward(const std::vector<at::Tensor>& features);

  /// For ops::dense_block; counts the batch of both normalizations.
  ops::DenseLayer begin_operator();
  /// Whether that operator can do what the layer is now: not where a normalization was folded away.
  bool is_plain() const;

  Norm norm1{nullptr}, norm2{nullptr};
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};

 private:
  at::Tensor bottleneck(const std::vector<at::Tensor>& features);
  at::Tensor read(const std::vector<at::Tensor>& features);

  DenseBlockOptions options_;
};
TORCH_MODULE(DenseLayer);

/// A densely connected block: layer l reads the features of all before it, (N, in + l k, H, W), and adds k;
/// the result is all of them, (N, in + layers k, H, W). Layers are named denselayer1, denselayer2, ...
///
/// Full-size channels kept for backward, of layer l with C = in + l k channels before it, under a `strategy`
/// that keeps one tensor (`standard` keeps 4k more):
/// | dense strategy           | kept     | backward does |
/// | naive, shared_gradient   | 2C + 5k  | nothing extra; naive keeps each layer's gradients, 2C + 4k, too |
/// | shared                   | 5k       | concatenation and first normalization again |
/// | checkpoint               | 5k       | the same, and the 1x1 convolution |
/// | fused                    | 5k       | normalizes again while it reads: ops::dense_block |
/// `naive`, `shared_gradient` and `checkpoint` are libtorch's layers but for what `strategy` changes; the
/// first two concatenate everything once more at the end, the others put features where the result will be.
/// `fused` has ReLU, leaky ReLU or the identity, and no `standard`: it keeps one tensor a
/// bottleneck. The same gradients and running statistics, state-dict keys and requirements of the input.
/// Throws Error(kUsage) at construction for options that do not fit.
class DenseBlockImpl : public torch::nn::Module {
 public:
  explicit DenseBlockImpl(const DenseBlockOptions& options);
  at::Tensor forward(const at::Tensor& x);

  int64_t out_channels() const { return options_.in + options_.layers * options_.growth; }

 private:
  DenseBlockOptions options_;
  std::vector<DenseLayer> layers_;
};
TORCH_MODULE(DenseBlock);

/// What the dense strategy is where nothing else was said: libtorch's layers for strategy `standard`, else
/// `fused`, or `shared` where that lacks the activation.
DenseStrategy default_dense_strategy(const NormOptions& norm);

/// Whether the two strategies and the activation go together.
bool fits(DenseStrategy dense_strategy, Strategy strategy, Activation activation, bool pre_activation = true);
/// Throws Error(kUsage), naming the way out, unless they do.
void check_dense(DenseStrategy dense_strategy, Strategy strategy, Activation activation,
                 bool pre_activation = true);

}  // namespace palimpsest::nn
