#include "palimpsest/models/common/convolution.h"

#include <cmath>

namespace palimpsest::models {
namespace {

/// Returns the factor that keeps the variance through the activation.
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

/// Draws every convolution without bias from N(0, gain^2 / fan), where fan = fan_of(fan-in, fan-out).
template <class Fan>
void start_normal(torch::nn::Module& module, double gain, const Fan& fan_of) {
  const at::NoGradGuard no_grad;
  for (const auto& child : module.modules(/*include_self=*/false)) {
    const auto* convolution = child->as<torch::nn::Conv2d>();
    if (!convolution || convolution->bias.defined()) continue;
    // torch's fans: of weight (out, in / groups, k, k), in / groups * k * k and out * k * k.
    const auto& weight = convolution->weight;
    const auto taps = static_cast<double>(weight.size(2) * weight.size(3));
    const double fan =
        fan_of(static_cast<double>(weight.size(1)) * taps, static_cast<double>(weight.size(0)) * taps);
    at::Tensor(weight).normal_(0, gain / std::sqrt(fan));
  }
}

constexpr double kGlorotClassifierGain = 0.1;

}  // namespace

nn::Conv2d conv(const SquareConvolution& shape, nn::ConvolutionBackend backend) {
  return nn::Conv2d(torch::nn::Conv2dOptions(shape.in, shape.out, shape.kernel)
                        .stride(shape.stride)
                        .padding(shape.dilation * (shape.kernel - 1) / 2)
                        .dilation(shape.dilation)
                        .groups(shape.groups)
                        .bias(false),
                    backend);
}

nn::Conv2d conv(const SquareConvolution& shape, const nn::NormOptions& norm) {
  return conv(shape, nn::convolution_backend(norm.strategy));
}

void initialize_convolutions(torch::nn::Module& module, const nn::NormOptions& norm) {
  start_normal(module, gain_of(norm), [](double /*fan_in*/, double fan_out) { return fan_out; });
}

void initialize_by_glorot(torch::nn::Module& module, const nn::NormOptions& norm,
                          const nn::Linear& classifier) {
  start_normal(module, gain_of(norm), [](double fan_in, double fan_out) { return (fan_in + fan_out) / 2; });
  if (classifier.is_empty()) return;
  const at::NoGradGuard no_grad;
  const auto fans = static_cast<double>(classifier->weight.size(0) + classifier->weight.size(1));
  const double bound = kGlorotClassifierGain * std::sqrt(6 / fans);
  classifier->weight.detach().uniform_(-bound, bound);
  classifier->bias.detach().zero_();
}

void initialize_plain_layers(torch::nn::Module& module, const nn::NormOptions& norm) {
  const double gain = gain_of(norm);
  const at::NoGradGuard no_grad;
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (const auto* convolution = child->as<torch::nn::Conv2d>())
      start_plain(convolution->weight, convolution->bias, gain);
    if (const auto* linear = child->as<torch::nn::Linear>()) start_plain(linear->weight, linear->bias, gain);
  }
}

}  // namespace palimpsest::models
