#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/nn/tap.h"

#include <torch/nn/modules/container/sequential.h>

namespace palimpsest::models {

/// Where a residual block stands: channels in, the base width of its stage, and its convolutions' geometry.
struct BlockOptions {
  int64_t in = 0;              ///< channels of the input
  int64_t planes = 64;         ///< 64, 128, 256, 512 in the four stages
  int64_t stride = 1;          ///< of the (first) 3x3 convolution and the projection
  int64_t first_dilation = 1;  ///< of the convolution that has the stride
  int64_t dilation = 1;        ///< of 3x3 convolutions after it
  int64_t groups = 1;
  int64_t width_per_group = 64;
  bool reads_sum = false;  ///< the input is the sum of a block that left its activation to its readers
  nn::NormOptions norm;

  nn::Pending input() const { return {reads_sum, norm.activation, norm.activation_param}; }
};

/// act(bn2(conv2(act(bn1(conv1(x))))) + shortcut), both convolutions 3x3; the sum without act where
/// nn::passes_sum_on says so. The shortcut is x, or its
/// projection `downsample` (1x1 convolution, normalization) where the shape changes. Dilation is supported.
class BasicBlock : public torch::nn::Module {
 public:
  static constexpr int64_t kExpansion = 1;  ///< channels out / planes
  explicit BasicBlock(const BlockOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  nn::NormOptions norm_;
  nn::Pending input_;
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  nn::Norm bn1_{nullptr}, bn2_{nullptr};
  torch::nn::Sequential downsample_{nullptr};  // projection, then its normalization
};

/// act(bn3(conv3(act(bn2(conv2(act(bn1(conv1(x)))))))) + shortcut): 1x1, 3x3 in groups, 1x1.
class Bottleneck : public torch::nn::Module {
 public:
  static constexpr int64_t kExpansion = 4;
  explicit Bottleneck(const BlockOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  nn::NormOptions norm_;
  nn::Pending input_;
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr};
  nn::Norm bn1_{nullptr}, bn2_{nullptr}, bn3_{nullptr};
  torch::nn::Sequential downsample_{nullptr};  // projection, then its normalization
};

}  // namespace palimpsest::models
