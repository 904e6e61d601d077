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

/// The shape of a WideResNet.
struct WideResNetShape {
  std::string name;               ///< for messages
  std::array<int64_t, 6> blocks;  ///< of mod2 to mod7
  /// false: the form for ImageNet, which max-pools before each of mod2 to mod6 and has no strided convolution.
  /// true: the form A2 for segmentation, which max-pools before mod2 and mod3; mod4, mod5 and mod6 begin with
  /// stride 2. It can be dilated, and a training batch drops channels in mod6 and mod7.
  bool a2 = false;
};

/// WideResNet-16/20/38: wide and shallow. A 3x3 stem of 64 channels at the resolution of the image, and six
/// modules of pre-activation blocks (models/preact_block.h), mod2 to mod7. mod2 to mod5 have blocks of two 3x3
/// convolutions, of widths (128, 128), (256, 256), (512, 512), (512, 1024); mod6 and mod7 have bottlenecks (512,
/// 1024, 2048) and (1024, 2048, 4096). A final normalization `bn_out`. Poolings are 3x3 of stride 2.
///
/// In the form A2 the first convolution of a block has the stride, in a bottleneck the 1x1 conv1. For output
/// stride 16 or 8 the last modules have no stride, and all their 3x3 convolutions are dilated: mod6 and mod7 by 2;
/// mod5 by 2, mod6 and mod7 by 4. Dropout of whole channels precedes conv3 in mod6 (0.3) and mod7 (0.5);
/// options.dropout is the probability of both.
/// Both forms have the same names, shapes and order. Names and initialization (initialize_by_glorot) follow the
/// In-Place ABN paper's own release: mod1.conv1, mod2.block1.bn1, mod2.block1.convs.conv1, .convs.bn2,
/// .convs.conv2, mod2.block1.proj_conv, bn_out, fc (there classifier.fc).
/// Sources: Wu, Shen, van den Hengel, "Wider or Deeper: Revisiting the ResNet Model for Visual Recognition",
/// 2016, models A and A2; Rota Bulo, Porzi, Kontschieder, CVPR 2018, section 4.1, and its release, which alone
/// shows the two forms.
class WideResNet : public nn::Cloneable<WideResNet, Backbone> {
 public:
  /// Throws Error(kUsage) for an output stride below 32 of the form without strides.
  WideResNet(const WideResNetShape& shape, const BackboneOptions& options);
  at::Tensor features(const at::Tensor& images) override;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(conv1_, modules_, bn_out_);
  }

  std::string name_;
  std::size_t pooled_;  ///< so many of the first modules are behind a pooling
  nn::Conv2d conv1_{nullptr};
  std::array<torch::nn::Sequential, 6> modules_{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
  nn::BatchNormAct bn_out_{nullptr};
};

}  // namespace palimpsest::models
