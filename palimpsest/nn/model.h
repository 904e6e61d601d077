#pragma once

#include <torch/nn/module.h>

namespace palimpsest::nn {

/// What a trainer needs to know of a network: images (N, 3, H, W) in, logits out:
/// (N, classes) for classification, (N, classes, H, W) for segmentation.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& images) = 0;
  virtual bool segments() const = 0;  ///< one label a pixel rather than one an image
};

}  // namespace palimpsest::nn
