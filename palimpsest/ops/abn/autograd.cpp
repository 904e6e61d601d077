#include "palimpsest/base/recomputing.h"
#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/invertibility/saved_channels.h"

#include <c10/core/GradMode.h>

#include <utility>

namespace palimpsest::ops::abn_detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool requires_grad(const OptionalTensor& t) {
  return t && t->requires_grad();
}

bool is_channels_last(const at::Tensor& t) {
  return preferred_layout(t.sym_sizes(), t.sym_strides()) == Layout::kChannelsLast;
}

}  // namespace

Activation resolved(Activation activation, double activation_param) {
  const bool has_param = activation == Activation::kLeakyReLU || activation == Activation::kELU;
  return has_param && activation_param == 0 ? Activation::kReLU : activation;
}

AbnOptions resolved(AbnOptions options, at::ScalarType dtype) {
  options.saved = saved_for(options, dtype);
  options.activation = resolved(options.activation, options.activation_param);
  return options;
}

ForwardArguments forward_arguments(const Inputs& inputs, const AbnOptions& options, bool for_backward) {
  const NormalizationTensors& norm = inputs.norm;
  const bool has_moved = options.training && recomputing();
  return {{inputs.residual, norm.weight, norm.bias, options.activation, options.activation_param,
           options.saved, options.relu_residual},
          has_moved ? std::nullopt : norm.running_mean,
          has_moved ? std::nullopt : norm.running_var,
          options.training,
          options.momentum,
          options.eps,
          for_backward,
          shares_statistics(options) ? options.group : ""};
}

Gradients backward_stealing(at::Tensor dz, const BackwardArguments& arguments) {
  const bool steal = arguments.need_dx && can_steal_gradient(dz, arguments.saved_values);
  return steal ? backward_(std::move(dz), arguments) : backward(dz, arguments);
}

at::Tensor saved_tensor(Saved saved, const at::Tensor& x, const ForwardResult& result) {
  if (saved == Saved::kInput) return x;
  // z would hold its node, and the node holds what it saves until all is packed: a leak when a hook throws, as
  // that of torch.utils.checkpoint does to stop early. The detached tensor shares the version counter.
  return saves_aside(saved) ? result.saved_values : result.z.detach();
}

void save(AutogradContext* ctx, at::Tensor saved_values, const ForwardArguments& arguments,
          const Statistics& statistics, at::ArrayRef<at::Tensor> more) {
  const Settings& settings = arguments.settings;
  const bool only_scales = !arguments.training && settings.activation == Activation::kIdentity &&
                           !requires_grad(settings.weight) && !requires_grad(settings.bias) &&
                           !settings.residual && more.empty();
  if (only_scales) saved_values = at::Tensor();
  // The branch bits and the saved channels have the memory order of the saved tensor: see saved_arguments.
  if (saved_values.defined()) ctx->saved_data["channels_last"] = is_channels_last(saved_values);
  variable_list tensors{std::move(saved_values),
                        invertibility::reveal(statistics.channel_values),
                        invertibility::reveal(statistics.channel_index),
                        settings.saved == Saved::kInput ? statistics.mean : at::Tensor(),
                        statistics.inv_std,
                        or_undefined(settings.weight),
                        or_undefined(settings.bias),
                        or_undefined(settings.residual),
                        statistics.branch,
                        statistics.count};
  tensors.insert(tensors.end(), more.begin(), more.end());
  ctx->save_for_backward(std::move(tensors));
  ctx->saved_data["training"] = arguments.training;
  ctx->saved_data["activation"] = static_cast<int64_t>(settings.activation);
  ctx->saved_data["activation_param"] = settings.activation_param;
  ctx->saved_data["saved"] = static_cast<int64_t>(settings.saved);
  ctx->saved_data["relu_residual"] = settings.relu_residual;
  if (!arguments.group.empty()) ctx->saved_data["group"] = arguments.group;
}

BackwardArguments saved_arguments(AutogradContext* ctx) {
  return saved_arguments(ctx, ctx->get_saved_variables());
}

BackwardArguments saved_arguments(AutogradContext* ctx, const variable_list& saved) {
  BackwardArguments a;
  a.saved_values = saved[0];
  a.channel_values = saved[1];
  a.channel_index = saved[2];
  a.inv_std = saved[4];
  a.mean = saved[3].defined() ? saved[3] : a.inv_std;  // a placeholder: only Saved::kInput reads the mean
  a.branch = saved[8];
  a.settings = {or_none(saved[7]),
                or_none(saved[5]),
                or_none(saved[6]),
                static_cast<Activation>(ctx->saved_data["activation"].toInt()),
                ctx->saved_data["activation_param"].toDouble(),
                static_cast<Saved>(ctx->saved_data["saved"].toInt()),
                ctx->saved_data["relu_residual"].toBool()};
  a.training = ctx->saved_data["training"].toBool();
  a.count = saved[9];
  if (a.count.defined()) a.group = ctx->saved_data["group"].toStringRef();
  // Hooks that copy saved tensors may change the memory order.
  const bool in_memory_order = a.branch.defined() || a.channel_values.sym_numel() != 0;
  if (in_memory_order && a.saved_values.defined()) {
    const bool channels_last = ctx->saved_data["channels_last"].toBool();
    if (is_channels_last(a.saved_values) != channels_last)
      a.saved_values = contiguous_in(channels_last ? Layout::kChannelsLast : Layout::kNCHW, a.saved_values);
  }
  return a;
}

GradientSlots::GradientSlots(AutogradContext* ctx, BackwardArguments& a, int first_slot) {
  int slot = first_slot;
  a.need_dx = ctx->needs_input_grad(slot++);
  if (a.settings.weight) {
    dweight_ = ctx->needs_input_grad(slot++);
    weight_type_ = a.settings.weight->scalar_type();
  }
  if (a.settings.bias) {
    dbias_ = ctx->needs_input_grad(slot++);
    bias_type_ = a.settings.bias->scalar_type();
  }
  if (a.settings.residual) a.need_dresidual = ctx->needs_input_grad(slot++);
  a.need_sums = dweight_ || dbias_;
  next_ = slot;
}

variable_list GradientSlots::in_order(Gradients gradients, std::initializer_list<at::Tensor> rest) const {
  variable_list result{std::move(gradients.dx), dweight_ ? gradients.dweight.to(weight_type_) : at::Tensor(),
                       dbias_ ? gradients.dbias.to(bias_type_) : at::Tensor(),
                       std::move(gradients.dresidual)};
  result.insert(result.end(), rest.begin(), rest.end());
  return result;
}

namespace {

variable_list differentiate(AutogradContext* ctx, variable_list& gradients) {
  refuse_double_backward("abn", "a separate batch_norm and activation");
  // The gradient moves out of the list: while a second reference lives, it cannot be overwritten.
  at::Tensor dz = std::move(gradients[0]);
  BackwardArguments arguments = saved_arguments(ctx);
  // With frozen statistics and the identity, dx is a scaled dz, and no values of the input were saved.
  if (!arguments.saved_values.defined()) arguments.saved_values = dz;
  const GradientSlots slots(ctx, arguments, /*first_slot=*/0);
  return slots.in_order(backward_stealing(std::move(dz), arguments), {at::Tensor()});
}

/// Writes z into a new tensor.
class AbnFunction : public torch::autograd::Function<AbnFunction> {
 public:
  static constexpr bool is_traceable = true;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& /*weight*/,
                            const OptionalTensor& /*bias*/, const OptionalTensor& /*residual*/,
                            const ForwardArguments* arguments) {
    ForwardResult result = abn_detail::forward(x, *arguments);
    save(ctx, saved_tensor(arguments->settings.saved, x, result), *arguments, result.statistics);
    return result.z;
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    return differentiate(ctx, gradients);
  }
};

/// Writes z over x. If z does not determine y, the tensor from before the activation is saved beside x.
class AbnInPlaceFunction : public torch::autograd::Function<AbnInPlaceFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& /*weight*/,
                            const OptionalTensor& /*bias*/, const OptionalTensor& /*residual*/,
                            const ForwardArguments* arguments) {
    const bool aside = saves_aside(arguments->settings.saved);
    ForwardResult result = aside ? abn_detail::forward(x, *arguments) : abn_detail::forward_(x, *arguments);
    if (aside) x.detach().copy_(result.z);
    ctx->mark_dirty({x});
    // Saving x itself would hold the base of a view in a cycle: a leak per iteration. The detached tensor
    // shares the version counter of x, so a later write to x is still noticed.
    save(ctx, aside ? std::move(result.saved_values) : x.detach(), *arguments, result.statistics);
    return x;
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    return differentiate(ctx, gradients);
  }
};

/// Writes the saved tensor over x, and z into a new tensor.
class AbnConsumingFunction : public torch::autograd::Function<AbnConsumingFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& /*weight*/,
                            const OptionalTensor& /*bias*/, const OptionalTensor& /*residual*/,
                            const ForwardArguments* arguments) {
    const at::Tensor saved_values = x.detach();
    ForwardResult result = abn_detail::forward_(saved_values, *arguments);
    save(ctx, saved_values, *arguments, result.statistics);
    return result.z;
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    return differentiate(ctx, gradients);
  }
};

/// AbnFunction or AbnConsumingFunction, which tells the caller what it saved.
class AbnRecomputableFunction : public torch::autograd::Function<AbnRecomputableFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& /*weight*/,
                            const OptionalTensor& /*bias*/, const OptionalTensor& /*residual*/,
                            const ForwardArguments* arguments, bool consume, Recomputable* told) {
    told->saved_values = x.detach();
    ForwardResult result =
        consume ? forward_(told->saved_values, *arguments) : abn_detail::forward(x, *arguments);
    if (!consume) told->saved_values = std::move(result.saved_values);
    told->mean = result.statistics.mean;
    told->inv_std = result.statistics.inv_std;
    save(ctx, told->saved_values, *arguments, result.statistics);
    return result.z;
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    variable_list result = differentiate(ctx, gradients);
    result.insert(result.end(), {at::Tensor(), at::Tensor()});
    return result;
  }
};

}  // namespace

Recomputable run_recomputable(const Inputs& inputs, AbnOptions options, bool consume) {
  options = resolved(options, inputs.x.scalar_type());
  const bool recorded = requires_gradient(inputs);
  const auto arguments = forward_arguments(inputs, options, recorded);
  const NormalizationTensors& norm = inputs.norm;
  Recomputable result;
  result.z = recorded ? AbnRecomputableFunction::apply(inputs.x, norm.weight, norm.bias, inputs.residual,
                                                       &arguments, consume, &result)
                      : forward(inputs.x, arguments).z;
  return result;
}

at::Tensor run(const Inputs& inputs, AbnOptions options) {
  options = resolved(options, inputs.x.scalar_type());
  const bool recorded = requires_gradient(inputs);
  const auto arguments = forward_arguments(inputs, options, recorded);
  const NormalizationTensors& norm = inputs.norm;
  return recorded ? AbnFunction::apply(inputs.x, norm.weight, norm.bias, inputs.residual, &arguments)
                  : forward(inputs.x, arguments).z;
}

at::Tensor run_in_place(const Inputs& inputs, AbnOptions options) {
  const Saved wanted = options.saved;
  const bool recorded = requires_gradient(inputs);
  options = resolved(options, inputs.x.scalar_type());
  if (saves_output(wanted) && !recorded) options.saved = wanted;  // forward alone inverts nothing
  auto arguments = forward_arguments(inputs, options, recorded);
  const at::Tensor& x = inputs.x;
  const NormalizationTensors& norm = inputs.norm;
  if (!saves_output(wanted))
    return recorded ? AbnConsumingFunction::apply(x, norm.weight, norm.bias, inputs.residual, &arguments)
                    : forward_(x, arguments).z;
  if (recorded) {
    // Another view of the base of x would hold the graph of that base, which contains this node: a cycle. The
    // detached tensor shares the version counter.
    OptionalTensor& residual = arguments.settings.residual;
    if (residual && residual->is_view() && x.is_view()) residual = residual->detach();
    AbnInPlaceFunction::apply(x, norm.weight, norm.bias, inputs.residual, &arguments);
  } else {
    forward_(x, arguments);
  }
  return x;
}

}  // namespace palimpsest::ops::abn_detail
