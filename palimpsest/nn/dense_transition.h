#pragma once

#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/dense_strategy.h"

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace palimpsest::nn {

/// Options of DenseTransition, e.g. DenseTransitionOptions(256).dense_strategy(DenseStrategy::kShared). A
/// later change has no effect.
struct DenseTransitionOptions {
  /* implicit */ DenseTransitionOptions(int64_t in_channels)
      : in_channels_(in_channels), out_channels_(in_channels / 2) {}

  /// Channels of the input. No default.
  TORCH_ARG(int64_t, in_channels);
  /// Channels of the result. Default: half of in_channels.
  TORCH_ARG(int64_t, out_channels);
  /// The dense strategy of the block before the transition. Default: fused.
  TORCH_ARG(DenseStrategy, dense_strategy) = DenseStrategy::kFused;
  /// Only the activation and its parameter are read: the strategy follows from dense_strategy. Default: leaky
  /// ReLU with slope 0.01.
  TORCH_ARG(NormOptions, norm) = {};
  /// true: normalization and activation precede the convolution. false: they follow it, before the mean, and
  /// norm().strategy says what is saved. Default: true.
  TORCH_ARG(bool, pre_activation) = true;
};

/// Returns the options of a normalization that reads the result of a densely connected block. `naive` and
/// `shared_gradient` give libtorch's layer. The other dense strategies give a layer that saves its input,
/// which the block saves in any case, and does not overwrite it.
NormOptions reader_of_block(const NormOptions& norm, DenseStrategy strategy);

/// Stands between two densely connected blocks: norm, activation, 1x1 `conv`, mean of 2x2 pixels (an odd last
/// row or column is left out), under torchvision's names. Under `naive` and `shared_gradient` these are
/// libtorch's layers. Under the other dense strategies only the input is saved, and the mean comes before the
/// convolution, which gives the same result with a quarter of the products.
class DenseTransitionImpl : public Cloneable<DenseTransitionImpl> {
 public:
  explicit DenseTransitionImpl(const DenseTransitionOptions& options);
  /// Maps (N, in_channels, H, W) to (N, out_channels, H / 2, W / 2). N may be 0.
  at::Tensor forward(const at::Tensor& x);

  DenseTransitionOptions options;

 private:
  void rebind(Clones& clones) override { clones(norm_, conv_); }

  BatchNormAct norm_{nullptr};
  Conv2d conv_{nullptr};
};
TORCH_MODULE(DenseTransition);

}  // namespace palimpsest::nn
