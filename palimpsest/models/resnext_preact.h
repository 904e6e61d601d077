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

/// A pre-activation bottleneck: x + conv3(act(bn3(conv2(act(bn2(conv1(act(bn1(x)))))))), with no
/// normalization after the sum. If the shape changes, the shortcut is proj_conv(act(bn1(x))) instead of x,
/// and bn1 may write over x. Otherwise x has two readers, so bn1 writes a new tensor; it does not save x, and
/// no copy of x is made.
///
/// Channels saved for backward, with C outer and W inner channels: 2C + 4W under `standard` (the inputs and
/// outputs of bn1, bn2 and bn3), C + 2W in place (the three outputs).
class PreactBottleneck : public nn::Cloneable<PreactBottleneck> {
 public:
  struct Options {
    int64_t in = 0;
    std::array<int64_t, 3> channels = {};  ///< out of conv1, conv2, conv3
    int64_t stride = 1;                    ///< of the 3x3 convolution and the projection
    int64_t dilation = 1;                  ///< of the 3x3 convolution
    int64_t groups = 64;
    nn::NormOptions norm = {};
  };
  explicit PreactBottleneck(const Options& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  void rebind(nn::Clones& clones) override { clones(bn1_, bn2_, bn3_, conv1_, conv2_, conv3_, proj_conv_); }

  nn::BatchNormAct bn1_{nullptr}, bn2_{nullptr}, bn3_{nullptr};
  nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr};
  nn::Conv2d proj_conv_{nullptr};
};

/// ResNeXt-50/101/152 as the In-Place ABN paper trains them: a 7x7 stem of 64 channels and stride 2 without
/// normalization, 3x3 max pooling, four modules of pre-activation blocks in 64 groups, and a final
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
