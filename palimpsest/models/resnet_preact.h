#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"

#include <torch/nn/modules/container/sequential.h>

#include <array>
#include <cstdint>
#include <string>

namespace palimpsest::models {

/// A pre-activation ResNet with 9n + 2 layers for images of 32 pixels: a 3x3 convolution to 16 channels,
/// three stages of n pre-activation bottlenecks (models/preact_block.h), and a final
/// normalization. The stages have 16, 32, 64 inner and 64, 128, 256 outer channels; the last two have stride
/// 2. The paper trains ResNet-164, n = 18. The mixed precision paper's ResNet-50 has the same blocks at the
/// scale of ImageNet.
/// Names: conv1, layer1.0.bn1, layer1.0.convs.conv1, ..., layer1.0.proj_conv, bn_out, fc.
/// Source: He, Zhang, Ren, Sun, "Identity Mappings in Deep Residual Networks", ECCV 2016, section 4 and its
/// appendix.
class PreactResNet : public nn::Cloneable<PreactResNet, Backbone> {
 public:
  /// Ignores options.output_stride: the features have output stride 4.
  PreactResNet(std::string name, int64_t blocks_of_stage, const BackboneOptions& options);
  at::Tensor features(const at::Tensor& images) override;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(conv1_, layers_, bn_out_);
  }

  std::string name_;
  nn::Conv2d conv1_{nullptr};
  std::array<torch::nn::Sequential, 3> layers_{nullptr, nullptr, nullptr};
  nn::BatchNormAct bn_out_{nullptr};
};

}  // namespace palimpsest::models
