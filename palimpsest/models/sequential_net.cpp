#include "palimpsest/models/sequential_net.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/models/common/module_place.h"
#include "palimpsest/nn/max_pool.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/dropout.h>

#include <array>
#include <utility>

namespace palimpsest::models {
namespace {

/// Channels and number of the convolutions before each pooling.
constexpr std::array<std::pair<int64_t, int>, 5> kVgg16 = {{{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}}};

/// Returns the least image of which the convolutions and poolings leave a pixel.
int64_t least_side_of(const SequentialShape& shape) {
  std::vector<Window> windows;
  for (const auto& c : shape.convolutions) {
    windows.push_back({c.kernel, c.stride, c.padding.value_or(c.kernel / 2)});
    if (c.pooled) windows.push_back({shape.pool_kernel, 2, shape.pool_padding});
  }
  return least_side(windows);
}

}  // namespace

SequentialShape alexnet(const std::string& name, int64_t divisor) {
  SequentialShape shape{name, {}, 3, 1, 2, {{"fc6", 1024}, {"fc7", 1024}}};
  shape.convolutions = {{"conv1", 96 / divisor, 5, 2, true},
                        {"conv2", 256 / divisor, 5, 1, true},
                        {"conv3", 384 / divisor},
                        {"conv4", 384 / divisor},
                        {"conv5", 256 / divisor, 3, 1, true}};
  return shape;
}

SequentialShape vgg16(const std::string& name, int64_t divisor) {
  SequentialShape shape{name, {}, 2, 0, 1, {{"fc6", 512}, {"fc7", 512}}};
  for (std::size_t s = 0; s < kVgg16.size(); ++s) {
    const auto [channels, count] = kVgg16[s];
    for (int i = 1; i <= count; ++i)
      shape.convolutions.push_back(
          {"conv" + std::to_string(s + 1) + "_" + std::to_string(i), channels / divisor, 3, 1, i == count});
  }
  return shape;
}

SequentialShape alexnet_imagenet() {
  SequentialShape shape{"alexnet", {}, 3, 0, 6, {{"classifier.1", 4096}, {"classifier.4", 4096}}};
  shape.classifier = "classifier.6";
  shape.convolutions = {{"features.0", 64, 11, 4, true, 2},
                        {"features.3", 192, 5, 1, true},
                        {"features.6", 384},
                        {"features.8", 256},
                        {"features.10", 256, 3, 1, true}};
  return shape;
}

SequentialShape vgg16_imagenet() {
  SequentialShape shape{"vgg16", {}, 2, 0, 7, {{"classifier.0", 4096}, {"classifier.3", 4096}}};
  shape.classifier = "classifier.6";
  int place = 0;  // each convolution has an activation after it, and each pooling has a place of its own
  for (const auto& [channels, count] : kVgg16) {
    for (int i = 1; i <= count; ++i, place += 2)
      shape.convolutions.push_back({"features." + std::to_string(place), channels, 3, 1, i == count});
    ++place;
  }
  return shape;
}

SequentialNet::SequentialNet(const SequentialShape& shape, const BackboneOptions& options)
    : shape_(shape), norm_(options.norm), least_side_(least_side_of(shape)) {
  shape_.dropout = options.dropout.value_or(shape.dropout);
  int64_t channels = 3;
  for (const auto& c : shape.convolutions) {
    convs_.push_back(register_below(*this, c.name,
                                    nn::Conv2d(torch::nn::Conv2dOptions(channels, c.channels, c.kernel)
                                                   .stride(c.stride)
                                                   .padding(c.padding.value_or(c.kernel / 2)),
                                               nn::ConvolutionBackend::kLibtorch)));
    channels = c.channels;
  }
  int64_t inputs = channels * shape.grid * shape.grid;
  if (options.classes > 0)
    for (const auto& [name, units] : shape.hidden) {
      hidden_.push_back(register_below(*this, name, nn::Linear(inputs, units)));
      inputs = units;
    }
  initialize_plain_layers(*this, options.norm);
  register_classifier(channels, inputs, options.classes, shape.classifier);
}

at::Tensor SequentialNet::features(const at::Tensor& images) {
  check_images(shape_.name, images);
  check_least_side(shape_.name, images, least_side_);
  at::Tensor x = images;
  for (std::size_t i = 0; i < convs_.size(); ++i) {
    x = nn::activate_(convs_[i]->forward(x), norm_.activation, norm_.activation_param);
    if (shape_.convolutions[i].pooled)
      // Every strategy but `standard` saves one byte per output.
      x = nn::max_pool2d(x, nn::Strategy::kInplace2, shape_.pool_kernel, 2, shape_.pool_padding);
  }
  if (x.size(2) != shape_.grid || x.size(3) != shape_.grid)
    x = at::adaptive_avg_pool2d(x, {shape_.grid, shape_.grid});
  return x;
}

at::Tensor SequentialNet::forward(const at::Tensor& images) {
  at::Tensor x = features(images);
  if (!has_classifier()) return x;
  x = x.flatten(1);
  for (auto& layer : hidden_) {
    x = nn::activate_(layer->forward(x), norm_.activation, norm_.activation_param);
    x = at::dropout(x, shape_.dropout, is_training());
  }
  return classify(x);
}

}  // namespace palimpsest::models
