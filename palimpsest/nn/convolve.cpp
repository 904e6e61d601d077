#include "palimpsest/nn/convolve.h"

#include "palimpsest/base/error.h"
#include "palimpsest/ops/autocast.h"
#include "palimpsest/ops/linear.h"

#include <variant>

namespace palimpsest::nn {
namespace {

/// Zeros, as many as given in pixels.
bool has_plain_padding(const torch::nn::Conv2dImpl& conv) {
  return std::holds_alternative<torch::ExpandingArray<2>>(conv.options.padding()) &&
         std::holds_alternative<torch::enumtype::kZeros>(conv.options.padding_mode());
}

}  // namespace

ops::ConvolutionOptions convolution_options(const torch::nn::Conv2dImpl& conv) {
  const auto& o = conv.options;
  if (!has_plain_padding(conv))
    throw Error(ErrorKind::kUsage,
                "a convolution behind a normalization that it shares a node with needs zero "
                "padding given in pixels; use strategy 'inplace_2' or 'standard' with any other");
  const auto list = [](const auto& array) { return std::vector<int64_t>(array->begin(), array->end()); };
  return {list(o.stride()), list(std::get<torch::ExpandingArray<2>>(o.padding())), list(o.dilation()),
          o.groups()};
}

std::optional<at::Tensor> bias_of(const torch::nn::Conv2dImpl& conv) {
  return conv.bias.defined() ? std::optional<at::Tensor>(conv.bias) : std::nullopt;
}

at::Tensor convolve(torch::nn::Conv2d& conv, const at::Tensor& x) {
  if (!ops::autocast_precision(x) || !has_plain_padding(*conv)) return conv->forward(x);
  return ops::convolution(x, conv->weight, bias_of(*conv), convolution_options(*conv));
}

at::Tensor linear(torch::nn::Linear& linear, const at::Tensor& x) {
  const auto bias = linear->bias.defined() ? std::optional<at::Tensor>(linear->bias) : std::nullopt;
  return ops::linear(x, linear->weight, bias);
}

at::Tensor convolve(torch::nn::Conv2d& conv, const at::Tensor& x, Strategy strategy) {
  if (strategy == Strategy::kStandard) {
    const auto precision = ops::autocast_precision(x);
    const bool libtorch_can =
        !precision ||
        !ops::weight_gradient_precision(ops::convolution_precision(*precision, x), x).compute_in_f32;
    return libtorch_can ? conv->forward(x) : convolve(conv, x);
  }
  if (!has_plain_padding(*conv)) return conv->forward(x);
  return ops::convolution(x, conv->weight, bias_of(*conv), convolution_options(*conv));
}

}  // namespace palimpsest::nn
