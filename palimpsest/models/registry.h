#pragma once

#include "palimpsest/nn/activation.h"
#include "palimpsest/nn/dense_strategy.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/nn/strategy.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::models {

/// Options that every model takes.
struct ModelOptions {
  int64_t classes = 1000;
  /// none: `inplace_2`; `standard` where nothing is normalized, which takes no other
  std::optional<nn::Strategy> strategy = std::nullopt;
  nn::Activation activation = nn::Activation::kLeakyReLU;
  double activation_param = 0.01;  ///< leaky ReLU's slope or ELU's alpha
  int64_t output_stride = 16;      ///< segmentation only: 8 or 16
  /// densenet... only; none: libtorch's layers for strategy `standard`, else `fused`, or `shared` where that
  /// lacks the activation
  std::optional<nn::DenseStrategy> dense_strategy = std::nullopt;
};

/// A network by name, freshly initialized from libtorch's global generator (seed it first):
/// resnet18/34/50/101/152, resnext50_32x4d, resnext101_32x8d, resnext101_64x4d (post-activation,
/// torchvision's names), resnext50_preact/101_preact/152_preact (the paper's), resnet18_narrow (resnet18 with
/// a quarter of its channels, to try things out with), deeplabv3_NAME for each of these;
/// densenet121/161/169/201, densenet232, densenet264 (k = 32) and densenet232_k48, densenet264_k48
/// (torchvision's names), and densenet_bcLAYERS_kGROWTH, the form for CIFAR, of any depth and growth; for
/// images of 32 pixels alexnet_cifar, vgg16_cifar, googlenet_cifar, inception_v2_cifar, inception_v3_cifar,
/// each as ..._cifar_narrow, too (AlexNet with half of its channels, the others with a quarter), and
/// resnet29_preact_cifar, resnet164_preact_cifar. Throws Error(kUsage) with the nearest name, or saying which
/// option does not fit.
std::shared_ptr<nn::Model> make(const std::string& name, const ModelOptions& options);
/// Those above; of densenet_bc..._k... the ones that papers have.
std::vector<std::string> names();
/// Whether make() knows the name: names() and every other densenet_bc..._k...
bool is_name(const std::string& name);
/// Whether the network normalizes, so that strategies make a difference: all but alexnet..., vgg16... and
/// googlenet...
bool normalizes(const std::string& name);

}  // namespace palimpsest::models
