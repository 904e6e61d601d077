#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/nn/tap.h"

#include <torch/nn/modules/container/sequential.h>

#include <array>

namespace palimpsest::models {

/// The shape of a post-activation residual network; torchvision's parameters have the same meaning.
struct ResNetShape {
  std::string name;               ///< for messages
  bool bottleneck = true;         ///< 1x1, 3x3, 1x1 with 4 times as many channels out; false: 3x3, 3x3
  std::array<int64_t, 4> blocks;  ///< blocks of each stage
  int64_t groups = 1;             ///< of the 3x3 convolution (ResNeXt's cardinality)
  int64_t width_per_group = 64;   ///< inner channels = planes * width_per_group / 64 * groups
  int64_t stem_channels = 64;     ///< planes of the first stage, too; each later one has twice as many
};

/// ResNet-18/34/50/101/152 and ResNeXt: out = act(bn(conv(...)) + shortcut). Parameters and buffers have
/// torchvision's names and order, so its weights load unchanged; the stride sits in the 3x3 convolution, as
/// there.
///
/// Saved for backward per bottleneck of C outer and W inner channels, beside the block's input: `standard` 2C
/// + 4W, the others C + 2W: the inner normalizations keep one tensor each, and the last one is recovered from
/// the block's output and its shortcut, which their other readers keep. A projection's normalization keeps C
/// more. Sources: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016;
/// Xie, Girshick, Dollar, Tu, He, "Aggregated Residual Transformations for Deep Neural Networks", CVPR 2017.
class ResNet : public Backbone {
 public:
  ResNet(const ResNetShape& shape, const BackboneOptions& options);
  at::Tensor features(const at::Tensor& images) override;

 private:
  ResNetShape shape_;
  nn::Pending output_;  // what the last block leaves to its reader
  torch::nn::Conv2d conv1_{nullptr};
  nn::Norm bn1_{nullptr};
  std::array<torch::nn::Sequential, 4> layers_{nullptr, nullptr, nullptr, nullptr};
};

}  // namespace palimpsest::models
