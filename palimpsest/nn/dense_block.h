#pragma once

#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/dense_strategy.h"
#include "palimpsest/ops/dense_block.h"

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

namespace palimpsest::nn {

/// Options of DenseBlock, e.g. DenseBlockOptions(64).layers(12).growth(32). A later change through
/// `block->options` has no effect unless its option says so.
struct DenseBlockOptions {
  /* implicit */ DenseBlockOptions(int64_t in_channels) : in_channels_(in_channels) {}

  /// Channels of the input. No default.
  TORCH_ARG(int64_t, in_channels);
  /// Layers, at least 1. Default: 6.
  TORCH_ARG(int64_t, layers) = 6;
  /// Channels that each layer adds, k. Default: 32.
  TORCH_ARG(int64_t, growth) = 32;
  /// Output channels of the 1x1 convolution, in multiples of k. Default: 4.
  TORCH_ARG(int64_t, bottleneck) = 4;
  /// How the block spends memory. Default: fused.
  TORCH_ARG(DenseStrategy, dense_strategy) = DenseStrategy::kFused;
  /// The activation of all normalizations, and the strategy of the normalization behind the 1x1 convolution.
  /// Default: leaky ReLU with slope 0.01, inplace_2.
  TORCH_ARG(NormOptions, norm) = {};
  /// true: normalization and activation precede each convolution. false: they follow it
  /// (ops/dense_block.h). Default: true.
  TORCH_ARG(bool, pre_activation) = true;
  /// Share of the new features that is set to zero in training mode, in [0, 1). Default: 0. A later change
  /// takes effect at the next forward.
  TORCH_ARG(double, dropout) = 0;
};

/// One layer: norm1, conv1 (1x1), norm2, conv2 (3x3), under torchvision's names; see DenseBlock.
class DenseLayerImpl : public Cloneable<DenseLayerImpl> {
 public:
  /// `channels`: the channels of all features before the layer.
  DenseLayerImpl(int64_t channels, const DenseBlockOptions& options);

  /// Returns the k new features, computed from the features of all layers before. `fused` runs as `shared`: where
  /// the block's operator does not fit, as after folding, or with frozen normalizations among others of a group.
  at::Tensor forward(const std::vector<at::Tensor>& features, double dropout = 0);

  /// Returns the layer as ops::dense_block takes it. Counts the batch in both normalizations.
  ops::DenseLayer begin_operator();
  /// Returns whether ops::dense_block can run the layer. It cannot after a normalization was folded away
  /// (nn/fold.h) or got the strategy `standard`.
  bool fits_block_operator() const;
  bool shares_statistics() const;  ///< with a group, of at least one normalization
  /// Returns whether both normalizations share statistics, or neither, as `shared` says.
  bool all_share_statistics(bool shared) const;
  bool is_pre_activation() const { return pre_activation_; }

  BatchNormAct norm1{nullptr}, norm2{nullptr};
  Conv2d conv1{nullptr}, conv2{nullptr};

 private:
  /// No normalization was folded away, and no convolution has a bias.
  bool is_plain() const;
  at::Tensor bottleneck(const std::vector<at::Tensor>& features);
  at::Tensor read(const std::vector<at::Tensor>& features);
  void rebind(Clones& clones) override { clones(norm1, norm2, conv1, conv2); }

  DenseStrategy dense_strategy_;
  bool pre_activation_;
};
TORCH_MODULE(DenseLayer);

/// A densely connected block: layer l reads the features of all layers before it, (N, in + l k, H, W), and
/// adds k; the result is all of them, (N, in + layers k, H, W). The layers are named denselayer1,
/// denselayer2, ...
///   nn::DenseBlock block(nn::DenseBlockOptions(64).layers(12).growth(32));
///
/// The table counts full-size channels that layer l saves for backward. C = in + l k channels lie before it,
/// and `strategy` saves one tensor (`standard` saves 4k more).
/// | dense strategy         | saved   | backward, beside the gradients                            |
/// | ---------------------- | ------- | --------------------------------------------------------- |
/// | naive, shared_gradient | 2C + 5k | nothing; naive also keeps each layer's gradients, 2C + 4k |
/// | shared                 | 5k      | runs concatenation, norm1 and its activation again        |
/// | checkpoint             | 5k      | runs concatenation, norm1, its activation and conv1 again |
/// | fused                  | 5k      | normalizes again while it reads: ops::dense_block         |
/// `naive`, `shared_gradient` and `checkpoint` run libtorch's layers, but for the normalization that
/// `strategy` changes. `naive` and `shared_gradient` concatenate all features once more at the end; the other
/// forms write features to their place in the result. `fused` takes ReLU, leaky ReLU or the identity (in
/// post-activation order any activation), and not the strategy `standard`. All forms have the same gradients,
/// running statistics, state-dict keys and requirements of the input.
/// Throws Error(kUsage) at construction for options that do not fit, and in forward for an x with another
/// number of channels.
class DenseBlockImpl : public Cloneable<DenseBlockImpl> {
 public:
  explicit DenseBlockImpl(const DenseBlockOptions& options);

  /// Maps x, (N, in_channels, H, W), to (N, out_channels(), H, W). N may be 0.
  at::Tensor forward(const at::Tensor& x);

  int64_t out_channels() const { return options.in_channels() + options.layers() * options.growth(); }

  DenseBlockOptions options;

 private:
  void rebind(Clones& clones) override { clones(layers_); }

  std::vector<DenseLayer> layers_;
};
TORCH_MODULE(DenseBlock);

/// Returns the dense strategy of a network that names none: `shared_gradient` for strategy `standard`; else
/// `fused`, or `shared` for an activation that `fused` does not take.
DenseStrategy default_dense_strategy(const NormOptions& norm);

/// Returns whether the two strategies and the activation go together.
bool fits(DenseStrategy dense_strategy, Strategy strategy, Activation activation, bool pre_activation = true);
/// Throws Error(kUsage), naming the way out, unless they go together.
void check_dense(DenseStrategy dense_strategy, Strategy strategy, Activation activation,
                 bool pre_activation = true);

}  // namespace palimpsest::nn
