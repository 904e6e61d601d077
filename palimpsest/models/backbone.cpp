#include "palimpsest/models/backbone.h"

#include "palimpsest/base/error.h"
#include "palimpsest/nn/convolve.h"

#include <torch/nn/init.h>

#include <cmath>
#include <sstream>

namespace palimpsest::models {
namespace {

/// What keeps the variance through the activation.
double gain_of(const nn::NormOptions& norm) {
  if (norm.activation == nn::Activation::kLeakyReLU)
    return std::sqrt(2.0 / (1.0 + norm.activation_param * norm.activation_param));
  return norm.activation == nn::Activation::kIdentity ? 1 : std::sqrt(2.0);
}

void start_plain(const at::Tensor& weight, const at::Tensor& bias, double gain) {
  const int64_t fan_in = weight.numel() / weight.size(0);
  weight.normal_(0, gain / std::sqrt(static_cast<double>(fan_in)));
  bias.zero_();
}

}  // namespace

at::Tensor Backbone::forward(const at::Tensor& images) {
  auto activated = features(images);
  if (!fc_) return activated;
  // The mean keeps nothing for backward but sizes, adaptive_avg_pool2d its input.
  return nn::linear(fc_, activated.mean({2, 3}));
}

void Backbone::register_classifier(int64_t features, int64_t classes, const std::string& name) {
  feature_channels_ = features;
  if (classes > 0) fc_ = register_module(name, torch::nn::Linear(features, classes));
}

void check_images(const std::string& model, const at::Tensor& images) {
  if (images.dim() == 4 && images.size(1) == 3 && images.numel() > 0 && images.is_floating_point()) return;
  std::ostringstream message;
  message << model << " needs images of shape (N, 3, H, W) with values of a floating type, got shape "
          << images.sizes() << " of " << images.scalar_type();
  throw Error(ErrorKind::kUsage, message.str());
}

torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t dilation,
                       int64_t groups) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel)
                               .stride(stride)
                               .padding(dilation * (kernel - 1) / 2)
                               .dilation(dilation)
                               .groups(groups)
                               .bias(false));
}

void initialize_convolutions(torch::nn::Module& module, const nn::NormOptions& norm) {
  const double gain = gain_of(norm);
  torch::NoGradGuard no_grad;
  for (const auto& child : module.modules(/*include_self=*/false)) {
    const auto* convolution = child->as<torch::nn::Conv2d>();
    if (!convolution || convolution->bias.defined()) continue;
    // torch's fan-out: of weight (out, in / groups, k, k), out * k * k, whatever the groups.
    const auto& weight = convolution->weight;
    const double fan_out = static_cast<double>(weight.size(0) * weight.size(2) * weight.size(3));
    at::Tensor(weight).normal_(0, gain / std::sqrt(fan_out));
  }
}

void initialize_plain_layers(torch::nn::Module& module, const nn::NormOptions& norm) {
  const double gain = gain_of(norm);
  torch::NoGradGuard no_grad;
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (const auto* convolution = child->as<torch::nn::Conv2d>())
      start_plain(convolution->weight, convolution->bias, gain);
    if (const auto* linear = child->as<torch::nn::Linear>()) start_plain(linear->weight, linear->bias, gain);
  }
}

StagePlanner::StagePlanner(int64_t output_stride) : output_stride_(output_stride) {
  if (output_stride == 8 || output_stride == 16 || output_stride == 32) return;
  throw Error(ErrorKind::kUsage, "output stride must be 8, 16 or 32, got " + std::to_string(output_stride));
}

StageGeometry StagePlanner::next(int64_t stride) {
  StageGeometry geometry{stride, dilation_, dilation_};
  if (reached_ * stride > output_stride_) {
    geometry.stride = 1;
    dilation_ *= stride;
    geometry.dilation = dilation_;
  } else {
    reached_ *= stride;
  }
  return geometry;
}

}  // namespace palimpsest::models
