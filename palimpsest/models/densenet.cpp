#include "palimpsest/models/densenet.h"

#include "palimpsest/base/error.h"
#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/nn/max_pool.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace palimpsest::models {
namespace {

constexpr int64_t kFewestLayers = 10, kMostLayers = 10000, kMostGrowth = 1024;
constexpr int64_t kMostWeights = int64_t{1} << 31;  // 8 GiB of f32

/// Removes the whole number at the front of `text` and returns it; -1 if there is none.
int64_t take_number(std::string_view& text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

}  // namespace

DenseNet::DenseNet(const DenseNetShape& shape, const BackboneOptions& options)
    : shape_(shape), parts_(std::make_shared<torch::nn::Module>("features")) {
  const nn::DenseStrategy strategy =
      options.dense_strategy.value_or(nn::default_dense_strategy(options.norm));
  register_module("features", parts_);
  int64_t channels = shape.stem_channels();
  const bool small = shape.stem == DenseStem::kSmall, deep = shape.stem == DenseStem::kDeep;
  const bool pre = options.pre_activation;
  const std::size_t depth = deep ? 3 : 1;
  for (std::size_t i = 0; i < depth; ++i) {
    const std::string number = std::to_string(i);
    const bool large = shape.stem == DenseStem::kLarge;
    convs_.push_back(parts_->register_module(
        "conv" + number,
        i == 0 ? conv({.in = 3, .out = channels, .kernel = large ? 7 : 3, .stride = small ? 1 : 2},
                      nn::ConvolutionBackend::kLibtorch)
               : conv({.in = channels, .out = channels, .kernel = 3}, options.norm)));
    // In post-activation order every reader takes activated features, so the stem's are, and the last are already.
    if (i + 1 < depth || large || !pre)
      norms_.push_back(parts_->register_module("norm" + number, nn::BatchNormAct(channels, options.norm)));
  }
  for (std::size_t i = 0; i < shape.blocks.size(); ++i) {
    const std::string number = std::to_string(i + 1);
    blocks_.push_back(parts_->register_module("denseblock" + number,
                                              nn::DenseBlock(nn::DenseBlockOptions(channels)
                                                                 .layers(shape.blocks[i])
                                                                 .growth(shape.growth)
                                                                 .dense_strategy(strategy)
                                                                 .norm(options.norm)
                                                                 .pre_activation(pre)
                                                                 .dropout(options.dropout.value_or(0)))));
    channels = blocks_.back()->out_channels();
    if (i + 1 == shape.blocks.size()) break;
    transitions_.push_back(parts_->register_module("transition" + number,
                                                   nn::DenseTransition(nn::DenseTransitionOptions(channels)
                                                                           .dense_strategy(strategy)
                                                                           .norm(options.norm)
                                                                           .pre_activation(pre))));
    channels /= 2;
  }
  if (pre)
    last_norm_ =
        parts_->register_module(small ? "norm_final" : "norm5",
                                nn::BatchNormAct(channels, nn::reader_of_block(options.norm, strategy)));
  const nn::Linear classifier = register_classifier(channels, options.classes, "classifier");
  if (deep) {
    initialize_by_glorot(*this, options.norm, classifier);
  } else {
    initialize_convolutions(*this, options.norm);
  }
}

at::Tensor DenseNet::features(const at::Tensor& images) {
  check_images(shape_.name, images);
  int64_t least = int64_t{1} << transitions_.size();  // the last transition needs 2 x 2 pixels
  const bool small = shape_.stem == DenseStem::kSmall;
  if (!small) least = 4 * (least - 1) + 1;  // the stem leaves a quarter, rounded up
  check_least_side(shape_.name, images, least);
  at::Tensor x = convs_[0]->forward(images);
  for (std::size_t i = 1; i < convs_.size(); ++i) x = norms_[i - 1]->forward_into(std::move(x), convs_[i]);
  if (norms_.size() == convs_.size()) x = norms_.back()->forward(std::move(x));
  if (!small) x = nn::max_pool2d(x, norms_[0]->options.strategy(), 3, 2, 1);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    x = blocks_[i]->forward(x);
    if (i < transitions_.size()) x = transitions_[i]->forward(x);
  }
  return last_norm_ ? last_norm_->forward(std::move(x)) : x;
}

std::optional<DenseNetShape> small_densenet(const std::string& name) {
  constexpr std::string_view kPrefix = "densenet_bc", kGrowth = "_k";
  std::string_view text = name;
  if (!text.starts_with(kPrefix)) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  const int64_t layers = take_number(text);
  if (layers < 0 || !text.starts_with(kGrowth)) return std::nullopt;
  text.remove_prefix(kGrowth.size());
  const int64_t growth = take_number(text);
  if (growth < 0 || !text.empty()) return std::nullopt;
  if (layers < kFewestLayers || layers > kMostLayers || (layers - 4) % 6 != 0 || growth < 1 ||
      growth > kMostGrowth)
    throw Error(ErrorKind::kUsage, "model '" + name +
                                       "' needs 6n + 4 layers, from 10 to 10000, and a growth "
                                       "from 1 to 1024, got " +
                                       std::to_string(layers) + " layers and growth " +
                                       std::to_string(growth));
  const int64_t of_each = (layers - 4) / 6;
  DenseNetShape shape{name, {of_each, of_each, of_each}, growth, DenseStem::kSmall};
  if (const int64_t weights = shape.bottleneck_weights(); weights > kMostWeights)
    throw Error(ErrorKind::kUsage, "model '" + name + "' would have " + std::to_string(weights) +
                                       " weights, the limit is " + std::to_string(kMostWeights) +
                                       ": take fewer layers or a smaller growth");
  return shape;
}

int64_t DenseNetShape::bottleneck_weights() const {
  int64_t weights = 0, channels = stem_channels();
  for (const int64_t layers : blocks) {
    for (int64_t i = 0; i < layers; ++i, channels += growth)
      weights += 4 * growth * channels + 9 * 4 * growth * growth;
    channels /= 2;  // by the transition
  }
  return weights;
}

}  // namespace palimpsest::models
