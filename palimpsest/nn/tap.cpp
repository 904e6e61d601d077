#include "palimpsest/nn/tap.h"

#include "palimpsest/base/error.h"

#include <variant>

namespace palimpsest::nn {

bool passes_sum_on(const NormOptions& options) {
  const bool recovered = options.strategy == Strategy::kInplace1Bit
                             ? fits(options.strategy, options.activation)
                             : kernels::is_invertible(options.activation);
  return options.strategy != Strategy::kStandard && !recovered;
}

ops::ConvolutionOptions convolution_options(const torch::nn::Conv2dImpl& conv) {
  const auto& o = conv.options;
  const auto* const padding = std::get_if<torch::ExpandingArray<2>>(&o.padding());
  if (!padding || !std::holds_alternative<torch::enumtype::kZeros>(o.padding_mode()))
    throw Error(ErrorKind::kUsage,
                "a convolution behind a normalization that it shares a node with needs zero "
                "padding given in pixels; use strategy 'inplace_2' or 'standard' with any other");
  const auto list = [](const auto& array) { return std::vector<int64_t>(array->begin(), array->end()); };
  return {list(o.stride()), list(*padding), list(o.dilation()), o.groups()};
}

at::Tensor read(const at::Tensor& t, const Pending& pending) {
  return pending.pending ? activate(t, pending.activation, pending.activation_param) : t;
}

at::Tensor read(const at::Tensor& t, const Pending& pending, torch::nn::Conv2d& conv) {
  if (!pending.pending) return conv->forward(t);
  const auto bias = conv->bias.defined() ? std::optional<at::Tensor>(conv->bias) : std::nullopt;
  return ops::activate_conv(t, conv->weight, bias, convolution_options(*conv), pending.activation,
                            pending.activation_param);
}

at::Tensor end_block(Norm& norm, at::Tensor h, const at::Tensor& shortcut, const Pending& pending,
                     const NormOptions& options) {
  if (!passes_sum_on(options))
    return norm->forward_sum(std::move(h), read(shortcut, pending), false, options.activation,
                             options.activation_param);
  const bool relu = pending.pending && pending.activation == Activation::kReLU;
  return norm->forward_sum(std::move(h), relu ? shortcut : read(shortcut, pending), relu,
                           Activation::kIdentity, 0);
}

}  // namespace palimpsest::nn
