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

/// ResNeXt-50/101/152 as the In-Place ABN paper trains them: a stem of three 3x3 convolutions of 64 channels, the
/// first of stride 2, with a normalization and activation between two of them, and 3x3 max pooling; four modules
/// of pre-activation bottlenecks (models/preact_block.h) in 64 groups; and a final normalization `bn_out`. The
/// first module has the widths (128, 128, 256); each later module has twice the widths of the module before.
///
/// The first block of a module has its stride in the 1x1 conv1 and in proj_conv. For output stride 16 or 8 the
/// last modules have no stride, and all their 3x3 convolutions are dilated, those of the first block too: mod5 by
/// 2; mod4 by 2 and mod5 by 4. Such a network computes every feature of the strided one and those between.
/// Names and initialization (initialize_by_glorot) follow the paper's own release: mod1.conv1, mod1.bn1,
/// mod1.conv2, mod1.bn2, mod1.conv3, mod2.block1.bn1, mod2.block1.convs.conv1, .convs.bn2, .convs.conv2,
/// .convs.bn3, .convs.conv3, mod2.block1.proj_conv, bn_out, fc (there classifier.fc).
/// Sources: Rota Bulo, Porzi, Kontschieder, CVPR 2018, section 4.1, and its release, which alone shows stem,
/// strides and dilation; He, Zhang, Ren, Sun, "Identity Mappings in Deep Residual Networks", ECCV 2016.
class PreactResNeXt : public nn::Cloneable<PreactResNeXt, Backbone> {
 public:
  PreactResNeXt(std::string name, const std::array<int64_t, 4>& blocks, const BackboneOptions& options);
  at::Tensor features(const at::Tensor& images) override;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(conv1_, conv2_, conv3_, bn1_, bn2_, modules_, bn_out_);
  }

  std::string name_;
  nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr};
  nn::BatchNormAct bn1_{nullptr}, bn2_{nullptr};
  std::array<torch::nn::Sequential, 4> modules_{nullptr, nullptr, nullptr, nullptr};
  nn::BatchNormAct bn_out_{nullptr};
};

}  // namespace palimpsest::models
