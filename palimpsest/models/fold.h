#pragma once

#include "palimpsest/nn/model.h"

#include <memory>
#include <string>
#include <vector>

namespace palimpsest::models {

/// Names of normalizations: "bn1", "layer1.0.bn2", in module order.
struct FoldReport {
  std::vector<std::string> folded;  ///< into the convolutions that feed them
  std::vector<std::string> kept;    ///< fed by something else: a sum, a pooling, an activation
};

/// `model` for inference: every normalization whose input comes from convolutions alone moves into them
/// (nn/fold.h) and only its activation is left. A convolution that took one has a bias, and neither
/// parameters nor buffers remain of the normalization. The logits stay the same but for rounding.
///   ResNet, ResNeXt        all: conv1 takes bn1, downsample.0 takes downsample.1, ...
///   pre-activation         convs.bn2 and convs.bn3; bn1 and bn_out follow sums and are kept
///   DenseNet               norm0 and norm2 of every layer; the others follow concatenations and are kept
///   Inception v2, v3       all: a block's bn is shared out to the convolutions that end its branches
///   DeepLabV3's head       all: map_bn is shared out to the four map_convs, red_bn's scale to both
///                          convolutions of the sum that it reads
/// Takes the model over: its weights are changed in place, it is not to be used by itself any more. The
/// result throws Error(kUsage) from forward() in training mode. dtype and device are set before. Throws
/// Error(kUsage) when the model is in training mode, folded already or has no normalization; then nothing is
/// changed.
std::shared_ptr<nn::Model> fold(std::shared_ptr<nn::Model> model, FoldReport* report = nullptr);

}  // namespace palimpsest::models
