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

/// ResNeXt-50/101/152 as the In-Place ABN paper trains them: a 7x7 stem of 64 channels and stride 2 without
/// normalization, 3x3 max pooling, four modules of pre-activation bottlenecks (models/preact_block.h) in 64
/// groups, with the stride in the 3x3 convolution, and a final
/// normalization `bn_out`. The first module has the widths (128, 128, 256); each later module has twice the
/// widths of the module before.
/// Names follow the paper's own release: mod1.conv1, mod2.block1.bn1, mod2.block1.convs.conv1, .convs.bn2,
/// .convs.conv2, .convs.bn3, .convs.conv3, mod2.block1.proj_conv, bn_out, fc.
/// Sources: Rota Bulo, Porzi, Kontschieder, CVPR 2018, section 4.1; He, Zhang, Ren, Sun, "Identity Mappings
/// in Deep Residual Networks", ECCV 2016.
class PreactResNeXt : public nn::Cloneable<PreactResNeXt, Backbone> {
 public:
  PreactResNeXt(std::string name, const std::array<int64_t, 4>& blocks, const BackboneOptions& options);
  at::Tensor features(const at::Tensor& images) override;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(conv1_, modules_, bn_out_);
  }

  std::string name_;
  nn::Conv2d conv1_{nullptr};
  std::array<torch::nn::Sequential, 4> modules_{nullptr, nullptr, nullptr, nullptr};
  nn::BatchNormAct bn_out_{nullptr};
};

}  // namespace palimpsest::models
