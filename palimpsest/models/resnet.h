#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/deferred_activation.h"

#include <torch/nn/modules/container/sequential.h>

#include <array>
#include <cstdint>
#include <string>

namespace palimpsest::models {

/// The shape of a post-activation residual network; torchvision's parameters have the same meaning.
struct ResNetShape {
  std::string name;               ///< for messages
  bool bottleneck = true;         ///< 1x1, 3x3, then 1x1 to 4 times as many channels; false: 3x3, 3x3
  std::array<int64_t, 4> blocks;  ///< blocks of each stage
  int64_t groups = 1;             ///< of the 3x3 convolution (ResNeXt's cardinality)
  int64_t width_per_group = 64;   ///< inner channels = planes * width_per_group / 64 * groups
  int64_t stem_channels = 64;     ///< also planes of the first stage; each later stage has twice as many
};

/// ResNet-18/34/50/101/152 and ResNeXt: out = act(bn(conv(...)) + shortcut). Parameters and buffers have
/// torchvision's names and order, so torchvision's weights load unchanged. The 3x3 convolution has the
/// stride, as in torchvision.
///
/// Channels saved for backward per bottleneck with C outer and W inner channels, beside the block's input:
/// 2C + 4W under `standard`, C + 2W under the other strategies. There each inner normalization saves one
/// tensor. The last normalization recovers its values from the block's output and its shortcut, which their
/// other readers save. A projection's normalization saves C more.
/// Sources: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016; Xie, Girshick,
/// Dollar, Tu, He, "Aggregated Residual Transformations for Deep Neural Networks", CVPR 2017.
class ResNet : public nn::Cloneable<ResNet, Backbone> {
 public:
  ResNet(const ResNetShape& shape, const BackboneOptions& options);
  at::Tensor features(const at::Tensor& images) override;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(conv1_, bn1_, layers_);
  }

  ResNetShape shape_;
  nn::DeferredActivation output_;  // of the last block
  nn::Conv2d conv1_{nullptr};
  nn::BatchNormAct bn1_{nullptr};
  std::array<torch::nn::Sequential, 4> layers_{nullptr, nullptr, nullptr, nullptr};
};

}  // namespace palimpsest::models
