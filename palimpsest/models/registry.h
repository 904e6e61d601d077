#pragma once

#include "palimpsest/nn/activation.h"
#include "palimpsest/nn/dense_strategy.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/nn/strategy.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::models {

/// Options that every network takes.
struct ModelOptions {
  /// 0: no classifier; forward then returns the features, (N, C, h, w) (models/backbone.h).
  int64_t classes = 1000;
  /// Default: `inplace_2`; `store_y` if the activation cannot be inverted, as ReLU. Networks without
  /// normalization take only `standard`, which is their default.
  std::optional<nn::Strategy> strategy = std::nullopt;
  /// Default: default_activation(name).
  std::optional<nn::Activation> activation = std::nullopt;
  double activation_param = 0.01;  ///< leaky ReLU's slope or ELU's alpha
  int64_t output_stride = 16;      ///< segmentation only: 8 or 16
  /// Only the names densenet... take it. Default: nn::default_dense_strategy.
  std::optional<nn::DenseStrategy> dense_strategy = std::nullopt;
  /// Only the names densenet... take false: normalization and activation then follow each convolution
  /// (models/densenet.h).
  bool pre_activation = true;
  /// Probability of dropout, in [0, 1). Only networks that drops_out() names take it. Default: the network's own,
  /// 0 for DenseNets, 0.2 for EfficientNet and MobileNetV3, 0.3 and 0.5 for WideResNets of the form A2.
  std::optional<double> dropout = std::nullopt;
  /// Only EfficientNets take it, also within deeplabv3_NAME: in [0, 1), the probability with which the last of its
  /// blocks leaves its branch out, if it has a shortcut. Default: 0.2.
  std::optional<double> stochastic_depth = std::nullopt;
  std::string group = {};  ///< of all normalizations: nn::NormOptions::group
};

/// Makes the network with this name, freshly initialized from libtorch's global generator (seed it first):
///   auto net = models::make("resnet50", {.classes = 10, .strategy = nn::Strategy::kStoreY});
/// | names                                                         | network                              |
/// | ------------------------------------------------------------- | ------------------------------------ |
/// | resnet18, 34, 50, 101, 152                                    | torchvision's ResNets                |
/// | resnext50_32x4d, resnext101_32x8d, resnext101_64x4d           | torchvision's ResNeXts               |
/// | resnext50_preact, resnext101_preact, resnext152_preact        | the In-Place ABN paper's ResNeXts    |
/// | wide_resnet16, 20, 38                                         | the paper's WideResNets; deeplabv3_  |
/// |                                                               | takes their form A2                  |
/// | resnet18_narrow                                               | ResNet-18 with 1/4 of its channels   |
/// | efficientnet_b0                                               | EfficientNet (SiLU)                  |
/// | mobilenet_v3_large, mobilenet_v3_small                        | MobileNetV3 (hard swish)             |
/// | deeplabv3_NAME for each of these                              | segmentation                         |
/// | densenet121, 161, 169, 201                                    | torchvision's DenseNets              |
/// | densenet232, 264, 232_k48, 264_k48                            | deeper DenseNets, k = 32 or 48       |
/// | densenet264_deep_stem                                         | the In-Place ABN paper's DenseNet    |
/// | densenet_bcLAYERS_kGROWTH                                     | for CIFAR, with any depth and growth |
/// | wide_resnet16_a2, 20_a2, 38_a2                                | the form A2, for classification      |
/// | alexnet, vgg16, googlenet, inception_v3                       | torchvision's, without auxiliary     |
/// |                                                               | classifiers                          |
/// | inception_v2                                                  | BN-Inception, 224 pixels             |
/// | resnet50_preact, resnet101_preact, resnet152_preact           | He et al.'s pre-activation ResNets   |
/// | alexnet, vgg16, googlenet, inception_v2, inception_v3 +_cifar | for images of 32 pixels              |
/// | the same +_cifar_narrow                                       | 1/2 (AlexNet) or 1/4 of the channels |
/// | resnet29_preact_cifar, resnet164_preact_cifar                 | pre-activation, images of 32 pixels  |
/// All networks but deeplabv3_NAME are of class Backbone. Throws Error(kUsage) for an unknown name (with the
/// nearest one) and for an option that does not fit.
std::shared_ptr<nn::Model> make(const std::string& name, const ModelOptions& options = {});
/// Returns the names above; for densenet_bcLAYERS_kGROWTH only the networks that papers have.
std::vector<std::string> names();
/// Returns whether make() knows the name: one of names(), or any other densenet_bcLAYERS_kGROWTH.
bool is_name(const std::string& name);
/// Returns whether the network has outputs per pixel: deeplabv3_NAME.
bool segments(std::string_view name);
/// Returns a lower bound of the number of values that the network's weights have, without making it. It grows with
/// the numbers in densenet_bcLAYERS_kGROWTH, and is 0 for other names: none has more than 200 million.
int64_t least_weights(const std::string& name);
/// Returns the activation that the network takes if none is given: leaky ReLU; for EfficientNet SiLU and for
/// MobileNetV3 hard swish, also within deeplabv3_NAME.
nn::Activation default_activation(const std::string& name);
/// Returns whether the network has dropout: densenet..., efficientnet..., mobilenet..., alexnet..., vgg16...,
/// googlenet..., inception_v3..., wide_resnet..._a2 and deeplabv3_wide_resnet...
bool drops_out(const std::string& name);
/// Returns whether the network has stochastic depth: efficientnet..., also as the body of deeplabv3_NAME.
bool has_stochastic_depth(const std::string& name);
/// Returns whether the network normalizes, so that strategies make a difference. All networks do but
/// alexnet..., vgg16... and googlenet_cifar...
bool normalizes(const std::string& name);

}  // namespace palimpsest::models
