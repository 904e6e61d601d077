#pragma once

#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/deferred_activation.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

namespace palimpsest::models {

/// The options of a residual block: its input channels, the base width of its stage, and the geometry of its
/// convolutions.
struct BlockOptions {
  int64_t in = 0;              ///< channels of the input
  int64_t planes = 64;         ///< 64, 128, 256, 512 in the four stages
  int64_t stride = 1;          ///< of the (first) 3x3 convolution and the projection
  int64_t first_dilation = 1;  ///< of the convolution that has the stride
  int64_t dilation = 1;        ///< of the 3x3 convolutions after it
  int64_t groups = 1;
  int64_t width_per_group = 64;
  nn::NormOptions norm = {};
  /// The activation that the producer of the input left to this block.
  nn::DeferredActivation input = {};
};

/// act(bn2(conv2(act(bn1(conv1(x))))) + shortcut) with two 3x3 convolutions. If blocks defer their activation
/// (nn::defers_activation), the result is the sum without act; the options at construction decide it, because
/// the readers are built for it. The shortcut is x, or its projection `downsample` (1x1 convolution,
/// normalization) where the shape changes.
class BasicBlock : public nn::Cloneable<BasicBlock> {
 public:
  static constexpr int64_t kExpansion = 1;  ///< channels out / planes
  explicit BasicBlock(const BlockOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  void rebind(nn::Clones& clones) override { clones(conv1_, conv2_, bn1_, bn2_, downsample_); }

  nn::DeferredActivation input_, output_;  // which activations are deferred is fixed at construction
  nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  nn::BatchNormAct bn1_{nullptr}, bn2_{nullptr};
  torch::nn::Sequential downsample_{nullptr};  // projection, then its normalization
};

/// act(bn3(conv3(act(bn2(conv2(act(bn1(conv1(x)))))))) + shortcut) with convolutions of 1x1, 3x3 (in groups)
/// and 1x1. Result and shortcut are as in BasicBlock.
class Bottleneck : public nn::Cloneable<Bottleneck> {
 public:
  static constexpr int64_t kExpansion = 4;
  explicit Bottleneck(const BlockOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  void rebind(nn::Clones& clones) override { clones(conv1_, conv2_, conv3_, bn1_, bn2_, bn3_, downsample_); }

  nn::DeferredActivation input_, output_;  // which activations are deferred is fixed at construction
  nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr};
  nn::BatchNormAct bn1_{nullptr}, bn2_{nullptr}, bn3_{nullptr};
  torch::nn::Sequential downsample_{nullptr};  // projection, then its normalization
};

}  // namespace palimpsest::models
