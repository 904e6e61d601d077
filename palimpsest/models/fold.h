#pragma once

#include "palimpsest/nn/model.h"

#include <memory>
#include <string>
#include <vector>

namespace palimpsest::models {

/// Names of normalizations in module order: "bn1", "layer1.0.bn2".
struct FoldReport {
  std::vector<std::string> folded;  ///< into the convolutions that feed them
  std::vector<std::string> kept;    ///< fed by another layer: a sum, a pooling, an activation
};

/// Makes `model` a network for inference: every normalization whose input comes from convolutions alone moves
/// into them (nn/fold.h), and only its activation is left. Each of these convolutions then has a bias, and
/// the normalization has neither parameters nor buffers. The logits stay the same but for rounding.
/// | network          | folded normalizations                                                              |
/// | ---------------- | ---------------------------------------------------------------------------------- |
/// | ResNet, ResNeXt  | all: bn1 into conv1, downsample.1 into downsample.0, ...                           |
/// | pre-activation   | convs.bn2 and convs.bn3; bn1 and bn_out follow sums and stay                       |
/// | DenseNet         | norm0, and norm2 of every layer; the others follow concatenations and stay         |
/// | Inception v2, v3 | all: a block's bn goes to the convolutions that end its branches                   |
/// | DeepLabV3's head | all: map_bn goes to the four map_convs, red_bn's scale to both convolutions before it |
/// The model's weights are changed in place, so do not use the model by itself afterwards. Set dtype, device
/// and classifier before. The result throws Error(kUsage) from forward() in training mode.
/// Throws Error(kUsage) if the model is in training mode, is folded already or has no normalization; then
/// nothing is changed.
std::shared_ptr<nn::Model> fold(std::shared_ptr<nn::Model> model, FoldReport* report = nullptr);

}  // namespace palimpsest::models
