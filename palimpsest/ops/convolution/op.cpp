#include "palimpsest/ops/convolution.h"

#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/convolution/functional.h"

#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace palimpsest::ops::convolution_detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor library_convolution(const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, const ConvolutionOptions& options) {
  const auto& [stride, padding, dilation, groups] = options;
  if (x.dim() == 3) return at::conv1d(x, weight, bias, stride, padding, dilation, groups);
  if (x.dim() == 4) return at::conv2d(x, weight, bias, stride, padding, dilation, groups);
  return at::conv3d(x, weight, bias, stride, padding, dilation, groups);
}

class ConvolutionFunction : public torch::autograd::Function<ConvolutionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const ConvolutionOptions* options,
                            const std::optional<ProductPrecision>* precision) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias.has_value();
    save_options(ctx, *options);
    save_precision(ctx, *precision);
    return convolution_detail::forward(x, weight, bias, *options, *precision);
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    refuse_double_backward("convolution", "torch::conv2d without autocast");
    const variable_list saved = ctx->get_saved_variables();
    const bool need_bias = ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2);
    Gradients g = convolution_detail::backward(
        gradients[0], saved[0], saved[1], saved_options(ctx),
        {ctx->needs_input_grad(0), ctx->needs_input_grad(1), need_bias}, saved_precision(ctx));
    return {std::move(g.input), std::move(g.weight), std::move(g.bias), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

void check_geometry(const char* op, const ConvolutionOptions& options) {
  constexpr int64_t kMost =
      std::numeric_limits<int32_t>::max();  // no product with a size of an image overflows
  const auto within = [&](const char* name, const std::vector<int64_t>& values, int64_t least) {
    for (const int64_t value : values)
      TORCH_CHECK(value >= least && value <= kMost, "[", op, "] ", name, " must be ", least, " to ", kMost,
                  ", got ", values);
  };
  within("stride", options.stride, 1);
  within("padding", options.padding, 0);
  within("dilation", options.dilation, 1);
}

void check(const char* op, const at::Tensor& x, const at::Tensor& weight,
           const std::optional<at::Tensor>& bias, const ConvolutionOptions& options) {
  const auto& [stride, padding, dilation, groups] = options;
  TORCH_CHECK(x.defined() && weight.defined(), "[", op,
              "] x and the convolution's weight must be tensors, got ", x.defined() ? "no weight" : "no x");
  TORCH_CHECK(x.dim() >= 3 && x.dim() <= 5 && weight.dim() == x.dim(), "[", op,
              "] the convolution's weight needs as many dimensions as x, 3 to 5: x has shape ", x.sym_sizes(),
              ", weight has shape ", weight.sym_sizes());
  const auto axes = static_cast<size_t>(x.dim() - 2);
  TORCH_CHECK(stride.size() == axes && padding.size() == axes && dilation.size() == axes, "[", op,
              "] stride, padding and dilation need one value for each of the ", axes,
              " spatial dimensions, got ", stride.size(), ", ", padding.size(), " and ", dilation.size());
  check_geometry(op, options);
  const c10::SymInt channels = x.sym_size(1), group_channels = weight.sym_size(1);
  TORCH_CHECK(groups > 0 && channels == group_channels * groups, "[", op,
              "] weight.size(1) * groups must be the channels of x, ", channels, ", got ", group_channels,
              " * ", groups);
  TORCH_CHECK(weight.sym_size(0) % groups == 0, "[", op,
              "] the convolution makes as many channels in each of its ", groups,
              " groups, got a weight for ", weight.sym_size(0), " channels, shape ", weight.sym_sizes());
  for (size_t d = 0; d < axes; ++d) {
    const c10::SymInt image = x.sym_size(static_cast<int64_t>(d) + 2) + 2 * padding[d],
                      window = dilation[d] * (weight.sym_size(static_cast<int64_t>(d) + 2) - 1) + 1;
    TORCH_SYM_CHECK(window.sym_le(image), "[", op, "] the window must fit into the padded image, got ",
                    window, " pixels along spatial dimension ", d, " of ", image, ": x has shape ",
                    x.sym_sizes(), ", weight has shape ", weight.sym_sizes());
  }
  const auto on_device = [&](const char* name, const at::Tensor& t) {
    TORCH_CHECK(t.device() == x.device(), "[", op, "] the convolution's ", name,
                " must be on the device of x, ", x.device(), ", got ", t.device());
  };
  on_device("weight", weight);
  if (!bias) return;
  TORCH_CHECK(bias->defined() && bias->dim() == 1 && bias->sym_size(0) == weight.sym_size(0), "[", op,
              "] the convolution's bias needs one value per output channel, ", weight.sym_size(0), ", got ",
              bias->defined() ? c10::str("shape ", bias->sym_sizes()) : std::string("none"));
  on_device("bias", *bias);
  TORCH_CHECK(autocast_precision(x) || bias->scalar_type() == weight.scalar_type(), "[", op,
              "] the convolution's bias must have the dtype of its weight, ", weight.scalar_type(), ", got ",
              bias->scalar_type());
}

}  // namespace palimpsest::ops::convolution_detail

namespace palimpsest::ops {

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       const ConvolutionOptions& options) {
  using namespace convolution_detail;
  check("convolution", x, weight, bias, options);
  const auto precision = autocast_precision(x);
  if (!precision && !has_own_pass(x, weight, options)) return library_convolution(x, weight, bias, options);
  // A cast that autograd records: for an f32 input, the 16-bit copy is saved.
  const at::Tensor input = precision ? x.to(precision->storage) : x;
  const bool recorded = c10::GradMode::is_enabled() &&
                        (input.requires_grad() || weight.requires_grad() || (bias && bias->requires_grad()));
  return recorded ? ConvolutionFunction::apply(input, weight, bias, &options, &precision)
                  : convolution_detail::forward(input, weight, bias, options, precision);
}

}  // namespace palimpsest::ops
