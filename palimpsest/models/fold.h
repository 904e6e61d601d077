#pragma once

#include "palimpsest/nn/model.h"

#include <memory>
#include <string>
#include <vector>

namespace palimpsest::models {

/// The names of a network's normalizations, in module order: "bn1", "layer1.0.bn2".
struct FoldReport {
  std::vector<std::string> folded;  ///< were folded into the convolutions that feed them
  std::vector<std::string> kept;    ///< stay: another layer feeds them (a sum, a pooling, an activation)
};

/// Makes `model` a network for inference: every normalization whose input comes from convolutions only moves
/// into these convolutions (nn/fold.h), and only its activation is left. The convolutions then have a bias,
/// and the state dict has no entries of the normalization. The logits stay the same but for rounding.
/// | network          | folded normalizations                                                               |
/// | ---------------- | ----------------------------------------------------------------------------------- |
/// | ResNet, ResNeXt  | all: bn1 into conv1, downsample.1 into downsample.0, ...                            |
/// | pre-activation   | the stem's, convs.bn2 and convs.bn3; bn1 of a block and bn_out follow sums and stay |
/// | DenseNet         | the stem's, and norm2 of every layer; the others follow concatenations and stay     |
/// |                  | (in post-activation order all)                                                      |
/// | EfficientNet, MobileNetV3 | all: 0.1 into 0.0, block.0.1 into block.0.0, ...                           |
/// | Inception v2, v3 | all: a block's bn goes to the convolutions that end its branches                    |
/// | torchvision's GoogLeNet, Inception v3 | all: bn into conv of every unit                                |
/// | DeepLabV3's head | all: map_bn into the four map_convs; red_bn's scale into red_conv and pool_red_conv |
/// Changes the model's weights in place, so do not use `model` itself afterwards. Set dtype, device and
/// classifier before the call. forward() of the result throws Error(kUsage) in training mode.
/// Throws Error(kUsage) if the model is in training mode, is folded already or has no normalization; nothing
/// is changed then.
std::shared_ptr<nn::Model> fold(std::shared_ptr<nn::Model> model, FoldReport* report = nullptr);

}  // namespace palimpsest::models
