#pragma once

#include "palimpsest/data/loader.h"
#include "palimpsest/nn/model.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::train::testing {

/// A segmentation network of a few hundred parameters that has all that a run must restore: convolutions with
/// and without bias, running statistics, and dropout, which draws from libtorch's generator.
class TinySegmenter : public nn::Model {
 public:
  explicit TinySegmenter(int64_t classes = 3, int64_t width = 8)
      : conv1(register_module(
            "conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, 3).padding(1).bias(false)))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(width))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, classes, 1)))),
        dropout(register_module("dropout", torch::nn::Dropout2d(0.1))) {}

  at::Tensor forward(const at::Tensor& images) override {
    if (is_training()) ++training_steps;
    at::Tensor logits = conv2(dropout(bn1(conv1(images_hook ? images_hook(*this, images) : images)).relu_()));
    return hook ? hook(*this, logits) : logits;
  }
  bool is_segmentation() const override { return true; }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::Dropout2d dropout;
  int64_t training_steps = 0;  ///< forward passes in training mode
  /// May look at or replace the logits: tests stop, poison or kill a run at a step with it.
  std::function<at::Tensor(TinySegmenter&, const at::Tensor&)> hook;
  std::function<at::Tensor(TinySegmenter&, const at::Tensor&)> images_hook;  ///< the same of the images
};

class TinyClassifier : public nn::Model {
 public:
  explicit TinyClassifier(int64_t classes = 3)
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 1)))),
        bn(register_module("bn", torch::nn::BatchNorm2d(4))),
        fc(register_module("fc", torch::nn::Linear(4, classes))) {}

  at::Tensor forward(const at::Tensor& images) override { return fc(bn(conv(images)).relu_().mean({2, 3})); }
  bool is_segmentation() const override { return false; }

  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d bn;
  torch::nn::Linear fc;
};

/// Images of noise, drawn anew each epoch, in which each pixel's brightest colour is its class; the first row
/// is void. `label` instead of the pixels' classes for classification.
class BrightestColor : public data::Dataset {
 public:
  BrightestColor(int64_t size, int64_t side, bool segmentation = true, int64_t label_offset = 0)
      : size_(size), side_(side), segmentation_(segmentation), label_offset_(label_offset) {}

  int64_t size() const override { return size_; }
  const std::vector<std::string>& class_names() const override { return names_; }
  data::Sample get(int64_t index, Random& random) const override {
    data::Sample sample;
    sample.name = "noise/" + std::to_string(index);
    sample.image = at::empty({3, side_, side_});
    float* values = sample.image.data_ptr<float>();
    for (int64_t i = 0; i < sample.image.numel(); ++i) values[i] = static_cast<float>(random.uniform(-1, 1));
    if (segmentation_) {
      sample.target = sample.image.argmax(0) + label_offset_;
      sample.target.select(0, 0).fill_(255);
    } else {
      sample.image.select(0, index % 3).add_(1);
      sample.target = at::scalar_tensor(index % 3 + label_offset_, at::kLong);
    }
    return sample;
  }

 private:
  int64_t size_, side_;
  bool segmentation_;
  int64_t label_offset_;
  std::vector<std::string> names_{"red", "green", "blue"};
};

inline data::LoaderOptions loader_options(int64_t batch_size, int64_t workers = 0) {
  data::LoaderOptions options;
  options.batch_size = batch_size;
  options.workers = workers;
  options.seed = 11;
  return options;
}

/// Initial weights that depend on `seed` only.
inline std::shared_ptr<TinySegmenter> make_tiny(uint64_t seed, int64_t classes = 3) {
  at::manual_seed(seed);
  return std::make_shared<TinySegmenter>(classes);
}

}  // namespace palimpsest::train::testing
