#include "palimpsest/ops/convolution.h"

#include "palimpsest/ops/abn/autograd.h"
#include "palimpsest/ops/convolution/functional.h"

#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/convolution.h>
#include <c10/core/GradMode.h>

namespace palimpsest::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor libtorchs(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     const ConvolutionOptions& o) {
  if (x.dim() == 3) return at::conv1d(x, weight, bias, o.stride, o.padding, o.dilation, o.groups);
  if (x.dim() == 4) return at::conv2d(x, weight, bias, o.stride, o.padding, o.dilation, o.groups);
  return at::conv3d(x, weight, bias, o.stride, o.padding, o.dilation, o.groups);
}

class ConvolveFunction : public torch::autograd::Function<ConvolveFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const ConvolutionOptions* options,
                            const std::optional<ProductPrecision>* precision) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias.has_value();
    save_options(ctx, *options);
    save_precision(ctx, *precision);
    return convolution_forward(x, weight, bias, *options, *precision);
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    refuse_second_derivative("convolve");
    const variable_list saved = ctx->get_saved_variables();
    const bool need_bias = ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2);
    auto g = convolution_backward(gradients[0], saved[0], saved[1], saved_options(ctx),
                                  {ctx->needs_input_grad(0), ctx->needs_input_grad(1), need_bias},
                                  saved_precision(ctx));
    return {std::move(g.input), std::move(g.weight), std::move(g.bias), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                    const ConvolutionOptions& o) {
  check_convolution("convolve", x, weight, o);
  const auto precision = autocast_precision(x);
  if (!precision && !has_own_pass(x, weight, o)) return libtorchs(x, weight, bias, o);
  // A cast that autograd sees: of an f32 input, what is kept is the 16-bit one.
  const at::Tensor input = precision ? x.to(precision->storage) : x;
  const bool recorded = c10::GradMode::is_enabled() &&
                        (input.requires_grad() || weight.requires_grad() || (bias && bias->requires_grad()));
  return recorded ? ConvolveFunction::apply(input, weight, bias, &o, &precision)
                  : convolution_forward(input, weight, bias, o, precision);
}

void check_convolution(const char* op, const at::Tensor& x, const at::Tensor& weight,
                       const ConvolutionOptions& o) {
  const auto axes = static_cast<size_t>(x.dim() - 2);
  TORCH_CHECK(x.dim() >= 3 && x.dim() <= 5 && weight.dim() == x.dim(), "[", op,
              "] kernel needs as many dimensions as x, 3 to 5: x has shape ", x.sizes(),
              ", kernel has shape ", weight.sizes());
  TORCH_CHECK(o.stride.size() == axes && o.padding.size() == axes && o.dilation.size() == axes, "[", op,
              "] stride, padding and dilation need one value for each of the ", axes,
              " spatial dimensions, got ", o.stride.size(), ", ", o.padding.size(), " and ",
              o.dilation.size());
  TORCH_CHECK(o.groups > 0 && weight.size(1) * o.groups == x.size(1), "[", op,
              "] kernel.size(1) * groups must be the channels of x, ", x.size(1), ", got ", weight.size(1),
              " * ", o.groups);
}

}  // namespace palimpsest::ops
