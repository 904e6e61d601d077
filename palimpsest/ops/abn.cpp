#include "palimpsest/ops/abn.h"

#include "palimpsest/ops/abn_autograd.h"
#include "palimpsest/ops/abn_inner.h"
#include "palimpsest/ops/check.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace palimpsest::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A call on its way through autograd. A Function with a second output fails in place on views and under
/// compiled autograd, so the statistics leave through here.
struct AbnCall {
  const AbnForwardArguments& arguments;
  AbnStatistics statistics;
};

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
                            const OptionalTensor& bias, const OptionalTensor& residual, AbnCall* call) {
    AbnForwardResult r = call_forward(x, call->arguments);
    call->statistics = r.statistics;
    save(ctx, kept_of(call->arguments.settings.keep, x, r), call->arguments, call->statistics);
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
                            const OptionalTensor& bias, const OptionalTensor& residual, AbnCall* call) {
    call->statistics = call_forward_(x, call->arguments).statistics;
    ctx->mark_dirty({x});
    // Not x: that would hold the base of a view in a cycle, a leak in every iteration. The detached tensor
    // shares x's version counter, so that a later write to x is still noticed.
    save(ctx, x.detach(), call->arguments, call->statistics);
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
                            const OptionalTensor& bias, const OptionalTensor& residual, AbnCall* call) {
    const at::Tensor kept = x.detach();
    AbnForwardResult r = call_forward_(kept, call->arguments);
    call->statistics = r.statistics;
    save(ctx, kept, call->arguments, call->statistics);
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
  AbnCall call{arguments, {}};
  at::Tensor z;
  if (recorded) {
    z = AbnFunction::apply(x, weight, bias, residual, &call);
  } else {
    AbnForwardResult r = call_forward(x, arguments);
    z = std::move(r.z);
    call.statistics = std::move(r.statistics);
  }
  update_running(tensors, options, call.statistics);
  return z;
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
  AbnCall call{arguments, {}};
  const bool over_x = keeps_output(options.keep);
  at::Tensor z;
  if (recorded) {
    if (over_x)
      AbnInPlaceFunction::apply(x, weight, bias, residual, &call);
    else
      z = AbnConsumingFunction::apply(x, weight, bias, residual, &call);
  } else {
    AbnForwardResult r = call_forward_(x, arguments);
    if (!over_x) z = std::move(r.z);
    call.statistics = std::move(r.statistics);
  }
  update_running(tensors, options, call.statistics);
  if (over_x) return x;
  return z;
}

}  // namespace palimpsest::ops
