#include "palimpsest/models/registry.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/models/deeplab.h"
#include "palimpsest/models/densenet.h"
#include "palimpsest/models/efficientnet.h"
#include "palimpsest/models/inception.h"
#include "palimpsest/models/mobilenet_v3.h"
#include "palimpsest/models/resnet.h"
#include "palimpsest/models/resnet_preact.h"
#include "palimpsest/models/resnext_preact.h"
#include "palimpsest/models/sequential_net.h"
#include "palimpsest/models/torchvision_inception.h"
#include "palimpsest/models/wide_resnet.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <utility>

namespace palimpsest::models {
namespace {

constexpr std::string_view kDeepLabPrefix = "deeplabv3_";

using Maker = std::function<std::shared_ptr<Backbone>(const BackboneOptions&)>;

struct Entry {
  std::string name;
  Maker make;
  bool normalizes = true;
  nn::Activation activation = nn::Activation::kLeakyReLU;  ///< the default
  bool drops_out = false;
  bool has_stochastic_depth = false;
  Maker make_body = nullptr;    ///< another form of the network, for deeplabv3_...
  bool body_drops_out = false;  ///< dropout is not before the classifier only
};

Entry resnet(std::string name, bool bottleneck, std::array<int64_t, 4> blocks, int64_t groups = 1,
             int64_t width_per_group = 64, int64_t stem_channels = 64) {
  const ResNetShape shape{name, bottleneck, blocks, groups, width_per_group, stem_channels};
  return {std::move(name), [shape](const BackboneOptions& o) { return std::make_shared<ResNet>(shape, o); }};
}

Entry preact(const std::string& name, std::array<int64_t, 4> blocks) {
  return {name, [name, blocks](const BackboneOptions& o) {
            return std::make_shared<PreactResNeXt>(name, blocks, o);
          }};
}

Entry wide_a2(const std::string& name, std::array<int64_t, 6> blocks) {
  const WideResNetShape shape{name + "_a2", blocks, /*a2=*/true};
  Entry entry{shape.name,
              [shape](const BackboneOptions& o) { return std::make_shared<WideResNet>(shape, o); }};
  entry.drops_out = true;
  return entry;
}

Entry wide(const std::string& name, std::array<int64_t, 6> blocks) {
  const WideResNetShape shape{name, blocks};
  Entry entry{name, [shape](const BackboneOptions& o) { return std::make_shared<WideResNet>(shape, o); }};
  entry.make_body = wide_a2(name, blocks).make;
  entry.body_drops_out = true;
  return entry;
}

Entry dense(const DenseNetShape& shape) {
  return {shape.name, [shape](const BackboneOptions& o) { return std::make_shared<DenseNet>(shape, o); }};
}

Entry sequential(const SequentialShape& shape) {
  return {shape.name, [shape](const BackboneOptions& o) { return std::make_shared<SequentialNet>(shape, o); },
          /*normalizes=*/false, nn::Activation::kLeakyReLU, /*drops_out=*/true};
}

Entry inception(const InceptionShape& shape) {
  return {shape.name, [shape](const BackboneOptions& o) { return std::make_shared<Inception>(shape, o); },
          shape.normalized, nn::Activation::kLeakyReLU, /*drops_out=*/shape.dropout > 0};
}

Entry efficient(const std::string& name) {
  return {name,
          [name](const BackboneOptions& o) { return std::make_shared<EfficientNet>(name, o); },
          /*normalizes=*/true,
          nn::Activation::kSiLU,
          /*drops_out=*/true,
          /*has_stochastic_depth=*/true};
}

Entry mobile(const MobileNetV3Shape& shape) {
  return {shape.name, [shape](const BackboneOptions& o) { return std::make_shared<MobileNetV3>(shape, o); },
          /*normalizes=*/true, nn::Activation::kHardSwish, /*drops_out=*/true};
}

Entry torchvision_inception(const TorchvisionInceptionShape& shape) {
  return {shape.name,
          [shape](const BackboneOptions& o) { return std::make_shared<TorchvisionInception>(shape, o); },
          /*normalizes=*/true, nn::Activation::kLeakyReLU, /*drops_out=*/true};
}

Entry preact_resnet(const PreactResNetShape& shape) {
  return {shape.name, [shape](const BackboneOptions& o) { return std::make_shared<PreactResNet>(shape, o); }};
}

constexpr std::array<int64_t, 6> kWide16 = {1, 1, 1, 1, 1, 1}, kWide20 = {1, 1, 1, 3, 1, 1},
                                 kWide38 = {3, 3, 6, 3, 1, 1};

/// The networks that deeplabv3_... takes as its body, or of which it takes another form.
const std::vector<Entry>& bodies() {
  static const std::vector<Entry> entries = {
      resnet("resnet18_narrow", false, {2, 2, 2, 2}, 1, 64, 16),
      resnet("resnet18", false, {2, 2, 2, 2}),
      resnet("resnet34", false, {3, 4, 6, 3}),
      resnet("resnet50", true, {3, 4, 6, 3}),
      resnet("resnet101", true, {3, 4, 23, 3}),
      resnet("resnet152", true, {3, 8, 36, 3}),
      resnet("resnext50_32x4d", true, {3, 4, 6, 3}, 32, 4),
      resnet("resnext101_32x8d", true, {3, 4, 23, 3}, 32, 8),
      resnet("resnext101_64x4d", true, {3, 4, 23, 3}, 64, 4),
      preact("resnext50_preact", {3, 4, 6, 3}),
      preact("resnext101_preact", {3, 4, 23, 3}),
      preact("resnext152_preact", {3, 8, 36, 3}),
      wide("wide_resnet16", kWide16),
      wide("wide_resnet20", kWide20),
      wide("wide_resnet38", kWide38),
      efficient("efficientnet_b0"),
      mobile(mobilenet_v3_large()),
      mobile(mobilenet_v3_small()),
  };
  return entries;
}

const std::vector<Entry>& densenets() {
  static const std::vector<Entry> entries = {
      dense({"densenet121", {6, 12, 24, 16}, 32}),
      dense({"densenet161", {6, 12, 36, 24}, 48}),
      dense({"densenet169", {6, 12, 32, 32}, 32}),
      dense({"densenet201", {6, 12, 48, 32}, 32}),
      dense({"densenet232", {6, 12, 48, 48}, 32}),
      dense({"densenet232_k48", {6, 12, 48, 48}, 48}),
      dense({"densenet264", {6, 12, 64, 48}, 32}),
      dense({"densenet264_k48", {6, 12, 64, 48}, 48}),
      dense({"densenet264_deep_stem", {6, 12, 64, 48}, 32, DenseStem::kDeep}),
      dense(*small_densenet("densenet_bc40_k12")),
      dense(*small_densenet("densenet_bc100_k12")),
  };
  return entries;
}

/// The networks for classification alone: WideResNets of the form A2, those of the mixed precision paper's ImageNet
/// table, and those for images of 32 pixels.
const std::vector<Entry>& small_networks() {
  static const std::vector<Entry> entries = {
      wide_a2("wide_resnet16", kWide16),
      wide_a2("wide_resnet20", kWide20),
      wide_a2("wide_resnet38", kWide38),
      sequential(alexnet_imagenet()),
      sequential(vgg16_imagenet()),
      torchvision_inception(googlenet_imagenet()),
      inception(inception_v2_imagenet()),
      torchvision_inception(inception_v3_imagenet()),
      preact_resnet({"resnet50_preact", {3, 4, 6, 3}}),
      preact_resnet({"resnet101_preact", {3, 4, 23, 3}}),
      preact_resnet({"resnet152_preact", {3, 8, 36, 3}}),
      sequential(alexnet("alexnet_cifar", 1)),
      sequential(alexnet("alexnet_cifar_narrow", 2)),
      sequential(vgg16("vgg16_cifar", 1)),
      sequential(vgg16("vgg16_cifar_narrow", 4)),
      inception(googlenet("googlenet_cifar", 1)),
      inception(googlenet("googlenet_cifar_narrow", 4)),
      inception(inception_v2("inception_v2_cifar", 1)),
      inception(inception_v2("inception_v2_cifar_narrow", 4)),
      inception(inception_v3("inception_v3_cifar", 1)),
      inception(inception_v3("inception_v3_cifar_narrow", 4)),
      preact_resnet(small_preact_resnet("resnet29_preact_cifar", 3)),
      preact_resnet(small_preact_resnet("resnet164_preact_cifar", 18)),
  };
  return entries;
}

const Entry* find(const std::vector<Entry>& entries, const std::string& name) {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.name == name; });
  return found == entries.end() ? nullptr : &*found;
}

std::string without_prefix(const std::string& name) {
  return segments(name) ? name.substr(kDeepLabPrefix.size()) : name;
}

nn::Activation activation_of(const std::string& name, const ModelOptions& options) {
  return options.activation.value_or(default_activation(name));
}

nn::Strategy strategy_of(const std::string& name, const ModelOptions& options) {
  if (options.strategy) return *options.strategy;
  if (!normalizes(name)) return nn::Strategy::kStandard;
  return nn::fits(nn::Strategy::kInplace2, activation_of(name, options)) ? nn::Strategy::kInplace2
                                                                         : nn::Strategy::kStoreY;
}

void check_probability(const std::string& name, const char* option, const std::optional<double>& p,
                       bool has_it, const char* who) {
  if (!p) return;
  if (!has_it)
    throw Error(ErrorKind::kUsage, fmt::format("model '{}' takes no {}, got {}; leave it out, or take {}",
                                               name, option, *p, who));
  if (!(*p >= 0 && *p < 1))
    throw Error(ErrorKind::kUsage, fmt::format("model '{}' needs a {} in [0, 1), got {}", name, option, *p));
}

void check_probabilities(const std::string& name, const ModelOptions& options) {
  check_probability(
      name, "dropout", options.dropout, drops_out(name),
      "a densenet, an efficientnet, a mobilenet, wide_resnet..._a2 or deeplabv3_wide_resnet...");
  check_probability(name, "stochastic depth", options.stochastic_depth, has_stochastic_depth(name),
                    "an efficientnet");
}

void check(const std::string& name, bool segments, const ModelOptions& options) {
  if (options.classes < 0) {
    throw Error(ErrorKind::kUsage, "model '" + name +
                                       "' needs classes = 1 or more, or 0 for no classifier, got " +
                                       std::to_string(options.classes));
  }
  nn::check_activation_param(activation_of(name, options), options.activation_param);
  const nn::Strategy strategy = strategy_of(name, options);
  if (!normalizes(name) && strategy != nn::Strategy::kStandard)
    throw Error(ErrorKind::kUsage, "model '" + name +
                                       "' has no normalizations and takes only strategy 'standard', got '" +
                                       nn::to_string(strategy) + "'; leave it out");
  nn::check_pair(strategy, activation_of(name, options));
  check_probabilities(name, options);
  const auto stride = options.output_stride;
  if (segments && stride != 8 && stride != 16) {
    throw Error(ErrorKind::kUsage,
                "model '" + name + "' needs an output stride of 8 or 16, got " + std::to_string(stride));
  }
  // A given value that equals the default is accepted: the two cannot be told apart.
  if (!segments && stride != ModelOptions{}.output_stride) {
    throw Error(ErrorKind::kUsage,
                "model '" + name + "' classifies and takes no output stride, got " + std::to_string(stride) +
                    "; leave it out" +
                    (find(bodies(), name) ? ", or take '" + std::string(kDeepLabPrefix) + name + "'" : ""));
  }
}

void refuse_dense_options(const std::string& name, const ModelOptions& options) {
  if (!options.pre_activation)
    throw Error(ErrorKind::kUsage,
                "model '" + name +
                    "' has no densely connected blocks and takes no post-activation order; "
                    "leave it out, or take a densenet");
  if (!options.dense_strategy) return;
  throw Error(ErrorKind::kUsage,
              "model '" + name + "' has no densely connected blocks and takes no dense strategy, got " +
                  nn::to_string(*options.dense_strategy) + "; leave it out, or take a densenet");
}

}  // namespace

std::shared_ptr<nn::Model> make(const std::string& name, const ModelOptions& options) {
  const bool segments = models::segments(name);
  const nn::NormOptions norm{.strategy = strategy_of(name, options),
                             .activation = activation_of(name, options),
                             .activation_param = options.activation_param,
                             .group = options.group};
  const Entry* body = find(bodies(), without_prefix(name));
  const Entry* small = find(small_networks(), name);
  if (body || small) {
    check(name, segments, options);
    refuse_dense_options(name, options);
    BackboneOptions backbone{.classes = options.classes, .norm = norm};
    backbone.dropout = options.dropout;
    backbone.stochastic_depth = options.stochastic_depth;
    if (!segments) return (body ? body : small)->make(backbone);
    backbone.classes = 0;
    backbone.output_stride = options.output_stride;
    const Maker& make_body = body->make_body ? body->make_body : body->make;
    return std::make_shared<DeepLabV3>(make_body(backbone), options.classes, norm);
  }
  const auto make_dense = [&](const Entry& entry) {
    check(name, false, options);
    BackboneOptions backbone{.classes = options.classes, .norm = norm};
    backbone.dense_strategy = options.dense_strategy;
    backbone.pre_activation = options.pre_activation;
    backbone.dropout = options.dropout;
    return entry.make(backbone);
  };
  if (const Entry* entry = find(densenets(), name)) return make_dense(*entry);
  if (const auto shape = small_densenet(name)) return make_dense(dense(*shape));
  throw Error(ErrorKind::kUsage, unknown_name_message("model", name, names()));
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& entry : bodies()) all.push_back(entry.name);
  for (const auto& entry : bodies()) all.push_back(std::string(kDeepLabPrefix) + entry.name);
  for (const auto& entry : densenets()) all.push_back(entry.name);
  for (const auto& entry : small_networks()) all.push_back(entry.name);
  return all;
}

bool is_name(const std::string& name) {
  const auto all = names();
  return std::find(all.begin(), all.end(), name) != all.end() || small_densenet(name).has_value();
}

int64_t least_weights(const std::string& name) {
  const auto shape = small_densenet(name);
  return shape ? shape->bottleneck_weights() : 0;
}

nn::Activation default_activation(const std::string& name) {
  const Entry* body = find(bodies(), without_prefix(name));
  return body ? body->activation : nn::Activation::kLeakyReLU;
}

bool segments(std::string_view name) {
  return name.starts_with(kDeepLabPrefix);
}

bool drops_out(const std::string& name) {
  const Entry* body = find(bodies(), without_prefix(name));
  if (segments(name)) return body && body->body_drops_out;
  const Entry* small = find(small_networks(), name);
  return body ? body->drops_out : small ? small->drops_out : name.starts_with("densenet");
}

bool has_stochastic_depth(const std::string& name) {
  const Entry* body = find(bodies(), without_prefix(name));
  return body && body->has_stochastic_depth;
}

bool normalizes(const std::string& name) {
  const Entry* entry = find(small_networks(), name);
  return !entry || entry->normalizes;
}

}  // namespace palimpsest::models
