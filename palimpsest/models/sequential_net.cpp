#include "palimpsest/models/sequential_net.h"

#include "palimpsest/base/error.h"
#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/nn/max_pool.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/dropout.h>

#include <algorithm>

namespace palimpsest::models {

SequentialShape alexnet(const std::string& name, int64_t divisor) {
  SequentialShape shape{name, {}, 3, 2, {1024, 1024}};
  shape.convolutions = {{"conv1", 96 / divisor, 5, 2, true},
                        {"conv2", 256 / divisor, 5, 1, true},
                        {"conv3", 384 / divisor},
                        {"conv4", 384 / divisor},
                        {"conv5", 256 / divisor, 3, 1, true}};
  return shape;
}

SequentialShape vgg16(const std::string& name, int64_t divisor) {
  SequentialShape shape{name, {}, 2, 1, {512, 512}};
  const std::vector<std::pair<int64_t, int>> stages = {{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}};
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto [channels, count] = stages[s];
    for (int i = 1; i <= count; ++i)
      shape.convolutions.push_back(
          {"conv" + std::to_string(s + 1) + "_" + std::to_string(i), channels / divisor, 3, 1, i == count});
  }
  return shape;
}

SequentialNet::SequentialNet(const SequentialShape& shape, const BackboneOptions& options)
    : shape_(shape), norm_(options.norm) {
  shape_.dropout = options.dropout.value_or(shape.dropout);
  int64_t channels = 3;
  for (const auto& c : shape.convolutions) {
    convs_.push_back(register_module(
        c.name,
        nn::Conv2d(
            torch::nn::Conv2dOptions(channels, c.channels, c.kernel).stride(c.stride).padding(c.kernel / 2),
            nn::ConvolutionBackend::kLibtorch)));
    channels = c.channels;
  }
  int64_t inputs = channels * shape.grid * shape.grid;
  if (options.classes > 0)
    for (const int64_t units : shape.hidden) {
      const std::string name = "fc" + std::to_string(6 + hidden_.size());
      hidden_.push_back(register_module(name, nn::Linear(inputs, units)));
      inputs = units;
    }
  initialize_plain_layers(*this, options.norm);
  register_classifier(channels, inputs, options.classes, "fc");
}

at::Tensor SequentialNet::features(const at::Tensor& images) {
  check_images(shape_.name, images);
  int64_t least = 1;  // a padded window fits into any image
  for (const auto& c : shape_.convolutions) least *= c.pooled && shape_.pool_kernel == 2 ? 2 : 1;
  check_least_side(shape_.name, images, least);
  at::Tensor x = images;
  for (std::size_t i = 0; i < convs_.size(); ++i) {
    x = nn::activate_(convs_[i]->forward(x), norm_.activation, norm_.activation_param);
    if (shape_.convolutions[i].pooled)
      // Every strategy but `standard` saves one byte per output.
      x = nn::max_pool2d(x, nn::Strategy::kInplace2, shape_.pool_kernel, 2, shape_.pool_kernel == 3 ? 1 : 0);
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
