#include "palimpsest/ops/abn.h"

#include "palimpsest/ops/abn/autograd.h"
#include "palimpsest/ops/abn/check.h"
#include "palimpsest/ops/abn/functional.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace palimpsest::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

variable_list differentiate(AutogradContext* ctx, variable_list& gradients) {
  refuse_second_derivative("abn");
  // Taken out of the list: while a second reference lives, the gradient is not ours to write over.
  at::Tensor dz = std::move(gradients[0]);
  AbnBackwardArguments arguments = saved_arguments(ctx);
  // Frozen statistics and no curve: the gradient is a scaled dz, and nothing of the input was kept for it.
  if (!arguments.kept.defined()) arguments.kept = dz;
  const AbnEdges edges(ctx, arguments, /*first_edge=*/0);
  const bool overwrite = arguments.need_dx && ours_to_overwrite(dz, arguments.kept);
  AbnGradients g = overwrite ? call_backward_(std::move(dz), arguments) : call_backward(dz, arguments);
  return edges.in_order(std::move(g), {at::Tensor()});
}

class AbnFunction : public torch::autograd::Function<AbnFunction> {
 public:
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& weight,
                            const OptionalTensor& bias, const OptionalTensor& residual,
                            const AbnForwardArguments* arguments) {
    AbnForwardResult r = call_forward(x, *arguments);
    save(ctx, kept_of(arguments->settings.keep, x, r), *arguments, r.statistics);
    return r.z;
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    return differentiate(ctx, gradients);
  }
};

/// Writes z over x.
class AbnInPlaceFunction : public torch::autograd::Function<AbnInPlaceFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& weight,
                            const OptionalTensor& bias, const OptionalTensor& residual,
                            const AbnForwardArguments* arguments) {
    const AbnForwardResult r = call_forward_(x, *arguments);
    ctx->mark_dirty({x});
    // Not x: that would hold the base of a view in a cycle, a leak in every iteration. The detached tensor
    // shares x's version counter, so that a later write to x is still noticed.
    save(ctx, x.detach(), *arguments, r.statistics);
    return x;
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    return differentiate(ctx, gradients);
  }
};

/// Writes what is kept over x, which is used up; z is fresh.
class AbnConsumingFunction : public torch::autograd::Function<AbnConsumingFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& weight,
                            const OptionalTensor& bias, const OptionalTensor& residual,
                            const AbnForwardArguments* arguments) {
    const at::Tensor kept = x.detach();
    AbnForwardResult r = call_forward_(kept, *arguments);
    save(ctx, kept, *arguments, r.statistics);
    return r.z;
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    return differentiate(ctx, gradients);
  }
};

}  // namespace

at::Tensor abn(const at::Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
               const OptionalTensor& running_mean, const OptionalTensor& running_var, const AbnOptions& given,
               const OptionalTensor& residual) {
  const AbnTensors tensors{x, weight, bias, running_mean, running_var, residual};
  check_abn(tensors, given);
  AbnOptions options = given;
  options.keep = safe_keep(given.keep, tensors);
  const bool recorded = differentiable(tensors);
  const auto arguments = arguments_of(tensors, options, recorded);
  return recorded ? AbnFunction::apply(x, weight, bias, residual, &arguments) : call_forward(x, arguments).z;
}

at::Tensor abn_(at::Tensor x, const OptionalTensor& weight, const OptionalTensor& bias,
                const OptionalTensor& running_mean, const OptionalTensor& running_var,
                const AbnOptions& given, const OptionalTensor& residual) {
  const AbnTensors tensors{x, weight, bias, running_mean, running_var, residual};
  check_abn(tensors, given);
  AbnOptions options = given;
  options.keep = safe_keep(given.keep, tensors);
  const bool recorded = differentiable(tensors);
  check_in_place(x, options.keep, recorded);
  const auto arguments = arguments_of(tensors, options, recorded);
  if (saves_output(options.keep)) {
    if (recorded)
      AbnInPlaceFunction::apply(x, weight, bias, residual, &arguments);
    else
      call_forward_(x, arguments);
    return x;
  }
  return recorded ? AbnConsumingFunction::apply(x, weight, bias, residual, &arguments)
                  : call_forward_(x, arguments).z;
}

}  // namespace palimpsest::ops
