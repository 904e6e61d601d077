#include "palimpsest/models/plain.h"

#include "palimpsest/base/error.h"
#include "palimpsest/nn/convolve.h"
#include "palimpsest/nn/max_pool.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/dropout.h>

#include <algorithm>

namespace palimpsest::models {

PlainShape alexnet(const std::string& name, int64_t divisor) {
  PlainShape shape{name, {}, 3, 2, {1024, 1024}};
  shape.convolutions = {{"conv1", 96 / divisor, 5, 2, true},
                        {"conv2", 256 / divisor, 5, 1, true},
                        {"conv3", 384 / divisor},
                        {"conv4", 384 / divisor},
                        {"conv5", 256 / divisor, 3, 1, true}};
  return shape;
}

PlainShape vgg16(const std::string& name, int64_t divisor) {
  PlainShape shape{name, {}, 2, 1, {512, 512}};
  const std::vector<std::pair<int64_t, int>> stages = {{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}};
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto [channels, count] = stages[s];
    for (int i = 1; i <= count; ++i)
      shape.convolutions.push_back(
          {"conv" + std::to_string(s + 1) + "_" + std::to_string(i), channels / divisor, 3, 1, i == count});
  }
  return shape;
}

PlainNet::PlainNet(const PlainShape& shape, const BackboneOptions& options)
    : shape_(shape), norm_(options.norm) {
  int64_t channels = 3;
  for (const auto& c : shape.convolutions) {
    convs_.push_back(
        register_module(c.name, torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, c.channels, c.kernel)
                                                      .stride(c.stride)
                                                      .padding(c.kernel / 2))));
    channels = c.channels;
  }
  int64_t features = channels * shape.grid * shape.grid;
  for (const int64_t units : shape.hidden) {
    const std::string name = "fc" + std::to_string(6 + hidden_.size());
    hidden_.push_back(register_module(name, torch::nn::Linear(features, units)));
    features = units;
  }
  initialize_plain_layers(*this, options.norm);
  fc_ = register_module("fc", torch::nn::Linear(features, options.classes));
}

at::Tensor PlainNet::forward(const at::Tensor& images) {
  check_images(shape_.name, images);
  int64_t least = 1;  // a padded window never comes to an end
  for (const auto& c : shape_.convolutions) least *= c.pooled && shape_.pool_kernel == 2 ? 2 : 1;
  if (std::min(images.size(2), images.size(3)) < least)
    throw Error(ErrorKind::kUsage, shape_.name + " needs images of at least " + std::to_string(least) +
                                       " pixels across, which its poolings halve to one, got " +
                                       std::to_string(images.size(2)) + " x " +
                                       std::to_string(images.size(3)));
  at::Tensor x = images;
  for (std::size_t i = 0; i < convs_.size(); ++i) {
    x = nn::activate_(nn::convolve(convs_[i], x), norm_.activation, norm_.activation_param);
    if (shape_.convolutions[i].pooled)
      // Any strategy but `standard`: one byte an output.
      x = nn::max_pool2d(x, nn::Strategy::kInplace2, shape_.pool_kernel, 2, shape_.pool_kernel == 3 ? 1 : 0);
  }
  if (x.size(2) != shape_.grid || x.size(3) != shape_.grid)
    x = at::adaptive_avg_pool2d(x, {shape_.grid, shape_.grid});
  x = x.flatten(1);
  for (auto& layer : hidden_) {
    x = nn::activate_(nn::linear(layer, x), norm_.activation, norm_.activation_param);
    x = at::dropout(x, shape_.dropout, is_training());
  }
  return nn::linear(fc_, x);
}

}  // namespace palimpsest::models
