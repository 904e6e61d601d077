#include "palimpsest/ops/abn.h"

#include "palimpsest/ops/abn_inner.h"
#include "palimpsest/ops/activation_name.h"
#include "palimpsest/ops/check.h"
#include "palimpsest/ops/recomputing.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
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

void save(AutogradContext* ctx, at::Tensor z, const AbnCall& call) {
  const auto& a = call.arguments;
  at::Tensor xhat = reveal_xhat(call.statistics.xhat, z);
  ctx->save_for_backward({std::move(z), std::move(xhat), call.statistics.inv_std,
                          a.weight.value_or(at::Tensor()), a.bias.value_or(at::Tensor())});
  ctx->saved_data["training"] = !a.frozen_mean.has_value();
  ctx->saved_data["activation"] = std::string(activation_name(a.activation));
  ctx->saved_data["activation_param"] = a.activation_param;
}

/// Whether backward may write dx over the incoming gradient: nobody else can see it. A convolution's gradient
/// passes; those of sum (expanded) and of a residual addition (shared with the other branch) do not.
bool ours_to_overwrite(const at::Tensor& dz, const at::Tensor& z) {
  return !c10::GradMode::is_enabled() && dz.use_count() == 1 && !at::isTensorSubclassLike(dz) &&
         dz.storage().use_count() == 1 && dz.is_non_overlapping_and_dense() &&
         dz.scalar_type() == z.scalar_type() && dz.device() == z.device() && dz.strides() == z.strides();
}

variable_list differentiate(AutogradContext* ctx, variable_list& gradients) {
  TORCH_CHECK(!c10::GradMode::is_enabled(),
              "[abn] the layer has no second derivative, got a backward pass with ",
              "create_graph; use batch_norm and an activation of their own where one is needed");
  // Taken out of the list: while a second reference lives, the gradient is not ours to write over.
  at::Tensor dz = std::move(gradients[0]);
  const auto saved = ctx->get_saved_variables();
  const at::Tensor &weight = saved[3], &bias = saved[4];

  // Edges of absent parameters do not exist, so the numbers of those behind them move up.
  const bool need_dx = ctx->needs_input_grad(0);
  const bool need_dweight = weight.defined() && ctx->needs_input_grad(1);
  const bool need_dbias = bias.defined() && ctx->needs_input_grad(weight.defined() ? 2 : 1);
  const auto optional = [](const at::Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; };
  const AbnBackwardArguments arguments{saved[0],
                                       saved[1],
                                       optional(weight),
                                       optional(bias),
                                       saved[2],
                                       ctx->saved_data["training"].toBool(),
                                       activation_from_name(ctx->saved_data["activation"].toStringRef()),
                                       ctx->saved_data["activation_param"].toDouble(),
                                       need_dweight || need_dbias};
  const bool overwrite = need_dx && ours_to_overwrite(dz, arguments.z);
  AbnGradients g =
      overwrite ? call_backward_(std::move(dz), arguments) : call_backward(dz, arguments, need_dx);
  return {std::move(g.dx), need_dweight ? std::move(g.dweight) : at::Tensor(),
          need_dbias ? std::move(g.dbias) : at::Tensor(), at::Tensor()};
}

class AbnFunction : public torch::autograd::Function<AbnFunction> {
 public:
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& weight,
                            const OptionalTensor& bias, AbnCall* call) {
    auto [z, statistics] = call_forward(x, call->arguments);
    call->statistics = std::move(statistics);
    save(ctx, z, *call);
    return z;
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    return differentiate(ctx, gradients);
  }
};

class AbnInPlaceFunction : public torch::autograd::Function<AbnInPlaceFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& weight,
                            const OptionalTensor& bias, AbnCall* call) {
    call->statistics = call_forward_(x, call->arguments);
    ctx->mark_dirty({x});
    // Not x: that would hold the base of a view in a cycle, a leak in every iteration. The detached tensor
    // shares x's version counter, so that a later write to x is still noticed.
    save(ctx, x.detach(), *call);
    return x;
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    return differentiate(ctx, gradients);
  }
};

bool differentiable(const at::Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias) {
  return c10::GradMode::is_enabled() &&
         (x.requires_grad() || (weight && weight->requires_grad()) || (bias && bias->requires_grad()));
}

AbnForwardArguments arguments_of(const AbnTensors& t, const AbnOptions& options, bool for_backward) {
  const auto frozen = [&](const OptionalTensor& running) {
    return options.training ? std::nullopt : running;
  };
  return {t.weight,
          t.bias,
          frozen(t.running_mean),
          frozen(t.running_var),
          options.eps,
          options.activation,
          options.activation_param,
          for_backward};
}

/// By ATen's own operators and outside the Function, so that tracing sees the mutation.
void update_running(const AbnTensors& t, const AbnOptions& options, const AbnStatistics& batch) {
  if (!options.training || !t.running_mean || recomputing()) return;
  const c10::NoGradGuard no_grad;
  t.running_mean->lerp_(batch.mean, options.momentum);
  t.running_var->lerp_(batch.unbiased_var, options.momentum);
}

}  // namespace

at::Tensor abn(const at::Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
               const OptionalTensor& running_mean, const OptionalTensor& running_var,
               const AbnOptions& options) {
  const AbnTensors tensors{x, weight, bias, running_mean, running_var};
  check_abn(tensors, options);
  const bool recorded = differentiable(x, weight, bias);
  const auto arguments = arguments_of(tensors, options, recorded);
  AbnCall call{arguments, {}};
  at::Tensor z;
  if (recorded) {
    z = AbnFunction::apply(x, weight, bias, &call);
  } else {
    std::tie(z, call.statistics) = call_forward(x, arguments);
  }
  update_running(tensors, options, call.statistics);
  return z;
}

at::Tensor abn_(at::Tensor x, const OptionalTensor& weight, const OptionalTensor& bias,
                const OptionalTensor& running_mean, const OptionalTensor& running_var,
                const AbnOptions& options) {
  const AbnTensors tensors{x, weight, bias, running_mean, running_var};
  check_abn(tensors, options);
  const bool recorded = differentiable(x, weight, bias);
  check_in_place(x, recorded);
  const auto arguments = arguments_of(tensors, options, recorded);
  AbnCall call{arguments, {}};
  if (recorded) {
    AbnInPlaceFunction::apply(x, weight, bias, &call);
  } else {
    call.statistics = call_forward_(x, arguments);
  }
  update_running(tensors, options, call.statistics);
  return x;
}

}  // namespace palimpsest::ops
