#pragma once

#include "palimpsest/nn/dense_strategy.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/nn/norm.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <string>

namespace palimpsest::models {

/// What every backbone is built from beside its own shape.
struct BackboneOptions {
  int64_t classes = 1000;  ///< 0: no classifier; forward() then returns the features
  int64_t output_stride =
      32;  ///< pixels of the image per feature: 32, or 16 or 8 by dilating the last stages
  nn::NormOptions norm;
  /// Of densely connected networks alone; none: nn::default_dense_strategy.
  std::optional<nn::DenseStrategy> dense_strategy = std::nullopt;
};

/// A classification network whose body can also serve a segmentation head.
class Backbone : public nn::Model {
 public:
  /// (N, 3, H, W) to (N, feature_channels(), ceil(H / output_stride), ceil(W / output_stride)), activated.
  virtual at::Tensor features(const at::Tensor& images) = 0;
  int64_t feature_channels() const { return feature_channels_; }

  /// Global average of the features, then the classifier: logits (N, classes).
  at::Tensor forward(const at::Tensor& images) override;
  bool segments() const override { return false; }

 protected:
  /// Registers the classifier (call it last: names come in the order of registration).
  void register_classifier(int64_t features, int64_t classes, const std::string& name = "fc");

 private:
  int64_t feature_channels_ = 0;
  torch::nn::Linear fc_{nullptr};
};

/// Throws Error(kUsage) unless `images` is (N, 3, H, W), floating point, of at least one pixel.
void check_images(const std::string& model, const at::Tensor& images);

/// A square convolution without bias that keeps the size at stride 1 (padding = dilation * (kernel - 1) / 2).
torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1, int64_t dilation = 1,
                       int64_t groups = 1);

/// Kaiming's normal initialization, fan-out, of every convolution without bias below `module`, as
/// torchvision's ResNets: std = gain / sqrt(out_channels * kernel^2). The gain preserves the variance through
/// the activation: sqrt(2 / (1 + slope^2)) for leaky ReLU, 1 for the identity. ELU has no agreed gain; it
/// takes ReLU's sqrt(2), and the normalization after each convolution makes the choice one of speed at the
/// start only.
void initialize_convolutions(torch::nn::Module& module, const nn::NormOptions& norm);

/// For networks without normalization: the same gain, by fan-in, of every convolution and linear layer below
/// `module`, so that forward values keep their size through any depth; biases 0.
void initialize_plain_layers(torch::nn::Module& module, const nn::NormOptions& norm);

/// Stride and dilation of a stage's first 3x3 convolution, and the dilation of those after it.
struct StageGeometry {
  int64_t stride = 1;
  int64_t first_dilation = 1;
  int64_t dilation = 1;
};

/// The next stage, which would halve the resolution. `current` holds the stride so far and the dilation in
/// force; where the output stride is reached, the stride becomes dilation: the first convolution still reads
/// neighbours at the old distance, the later ones at the doubled one. Every output of the strided network is
/// then also an output of the dilated one (tests/models/atrous_test.cpp).
class StagePlanner {
 public:
  /// Throws Error(kUsage) unless output_stride is 8, 16 or 32. The stem has stride 4.
  explicit StagePlanner(int64_t output_stride);
  StageGeometry next(int64_t stride);

 private:
  int64_t output_stride_;
  int64_t reached_ = 4;
  int64_t dilation_ = 1;
};

}  // namespace palimpsest::models
