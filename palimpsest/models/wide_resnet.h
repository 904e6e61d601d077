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

/// WideResNet-16/20/38: wide and shallow. A 3x3 stem of 64 channels at the resolution of the image, and six
/// modules of pre-activation blocks (models/preact_block.h), mod2 to mod7. 3x3 max pooling of stride 2 before mod2 and mod3; mod4, mod5
/// and mod6 begin with stride 2. mod2 to mod5 have blocks of two 3x3 convolutions, of widths (128, 128),
/// (256, 256), (512, 512), (512, 1024); mod6 and mod7 have bottlenecks (512, 1024, 2048) and (1024, 2048, 4096).
/// A final normalization `bn_out`. For output stride 8 mod5 has dilation 2, mod6 and mod7 have dilation 4.
/// Names follow the In-Place ABN paper's own release: mod1.conv1, mod2.block1.bn1, mod2.block1.convs.conv1,
/// .convs.bn2, .convs.conv2, mod2.block1.proj_conv, bn_out, fc. A strided bottleneck has its stride in the 3x3
/// convolution, as in PreactResNeXt. There is no dropout, of which the paper says nothing.
/// Sources: Wu, Shen, van den Hengel, "Wider or Deeper: Revisiting the ResNet Model for Visual Recognition",
/// 2016, models A and A2; Rota Bulo, Porzi, Kontschieder, CVPR 2018, section 4.1.
class WideResNet : public nn::Cloneable<WideResNet, Backbone> {
 public:
  /// `blocks`: those of mod2 to mod7.
  WideResNet(std::string name, const std::array<int64_t, 6>& blocks, const BackboneOptions& options);
  at::Tensor features(const at::Tensor& images) override;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(conv1_, modules_, bn_out_);
  }

  std::string name_;
  nn::Conv2d conv1_{nullptr};
  std::array<torch::nn::Sequential, 6> modules_{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
  nn::BatchNormAct bn_out_{nullptr};
};

}  // namespace palimpsest::models
