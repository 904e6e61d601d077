#include "palimpsest/ops/linear.h"

#include "palimpsest/ops/common/autocast.h"
#include "palimpsest/ops/common/gradients.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace palimpsest::ops::linear_detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, const ProductPrecision& precision) {
  const ProductPrecision p = product_precision(precision, x);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto b = bias ? std::optional(operand(*bias, p)) : std::nullopt;
  return at::linear(operand(x, p), operand(weight, p), b).to(p.storage);
}

/// Returns (..., c) as (rows, c).
at::Tensor rows_of(const at::Tensor& t) {
  return t.reshape({-1, t.size(-1)});
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const ProductPrecision* precision) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["bias"] = bias.has_value();
    save_precision(ctx, *precision);
    return linear_forward(x, weight, bias, *precision);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    refuse_double_backward("linear", "torch::linear without autocast");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dout = gradients[0];
    const auto precision = product_precision(*saved_precision(ctx), x),
               of_weight = weight_gradient_precision(precision, x);
    variable_list result(4);
    at::Tensor factor = operand(dout, precision);
    if (ctx->needs_input_grad(0))
      result[0] = at::matmul(factor, operand(weight, precision)).to(precision.storage);
    if (ctx->needs_input_grad(1)) {
      factor = factor.to(of_weight.compute_type());
      result[1] = at::matmul(rows_of(factor).t(), rows_of(operand(x, of_weight))).to(precision.storage);
    }
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2))
      result[2] = rows_of(dout).sum(0, /*keepdim=*/false, at::kFloat).to(precision.storage);
    return result;
  }
};

}  // namespace
}  // namespace palimpsest::ops::linear_detail

namespace palimpsest::ops {

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  using namespace linear_detail;
  const auto precision = autocast_precision(x);
  if (!precision) return at::linear(x, weight, bias);
  // A cast that autograd records: for an f32 input, the 16-bit copy is saved.
  const at::Tensor input = x.to(precision->storage);
  const bool recorded = c10::GradMode::is_enabled() &&
                        (input.requires_grad() || weight.requires_grad() || (bias && bias->requires_grad()));
  return recorded ? LinearFunction::apply(input, weight, bias, &*precision)
                  : linear_forward(input, weight, bias, *precision);
}

}  // namespace palimpsest::ops
