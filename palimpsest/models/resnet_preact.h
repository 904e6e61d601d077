#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::models {

/// The shape of a pre-activation ResNet of bottlenecks.
struct PreactResNetShape {
  std::string name;             ///< for messages
  std::vector<int64_t> blocks;  ///< of each stage; all stages but the first have stride 2
  int64_t planes = 64;          ///< inner channels of the first stage; each later stage has twice as many
  /// true: the stem is a 7x7 convolution of stride 2, its normalization and max pooling; false: one 3x3
  /// convolution.
  bool has_large_stem = true;
};

/// The shape with 9n + 2 layers for images of 32 pixels: three stages of n bottlenecks, with 16, 32, 64 inner
/// and 64, 128, 256 outer channels. The paper trains ResNet-164, n = 18.
PreactResNetShape small_preact_resnet(const std::string& name, int64_t blocks_of_stage);

/// A pre-activation ResNet: a stem, stages of pre-activation bottlenecks (models/preact_block.h), whose outer
/// channels are 4 times the inner ones, and a final normalization. With the large stem both paths of the first
/// block read the stem's activated output, as the paper has it, so the first block has no bn1. The 3x3
/// convolution has the stride. The mixed precision paper's ResNet-50 has blocks {3, 4, 6, 3}.
/// Names: conv1, bn1 of the large stem, layer1.0.bn1, layer1.0.convs.conv1, ..., layer1.0.proj_conv, bn_out, fc.
/// Source: He, Zhang, Ren, Sun, "Identity Mappings in Deep Residual Networks", ECCV 2016, section 4 and its
/// appendix.
class PreactResNet : public nn::Cloneable<PreactResNet, Backbone> {
 public:
  /// Ignores options.output_stride: the features have output stride 4, with the large stem 32.
  PreactResNet(const PreactResNetShape& shape, const BackboneOptions& options);
  at::Tensor features(const at::Tensor& images) override;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(conv1_, bn1_, layers_, bn_out_);
  }

  std::string name_;
  nn::Conv2d conv1_{nullptr};
  nn::BatchNormAct bn1_{nullptr};  // of the large stem
  std::vector<torch::nn::Sequential> layers_;
  nn::BatchNormAct bn_out_{nullptr};
};

}  // namespace palimpsest::models
