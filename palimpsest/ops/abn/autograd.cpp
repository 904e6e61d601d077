#include "palimpsest/ops/abn/autograd.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/names.h"
#include "palimpsest/ops/invertibility/predictor.h"
#include "palimpsest/ops/invertibility/saved_channels.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <c10/core/GradMode.h>

#include <string>
#include <utility>

namespace palimpsest::ops {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void refuse_second_derivative(const char* op) {
  TORCH_CHECK(
      !c10::GradMode::is_enabled(), "[", op,
      "] the layer has no second derivative, got a backward pass with create_graph; use batch_norm and "
      "an activation of their own where one is needed");
}

bool ours_to_overwrite(const at::Tensor& dz, const at::Tensor& like) {
  return !c10::GradMode::is_enabled() && dz.use_count() == 1 && !at::isTensorSubclassLike(dz) &&
         dz.storage().use_count() == 1 && dz.is_non_overlapping_and_dense() &&
         dz.scalar_type() == like.scalar_type() && dz.device() == like.device() &&
         dz.strides() == like.strides();
}

bool differentiable(const AbnTensors& t) {
  const auto wants = [](const OptionalTensor& tensor) { return tensor && tensor->requires_grad(); };
  return c10::GradMode::is_enabled() &&
         (t.x.requires_grad() || wants(t.weight) || wants(t.bias) || wants(t.residual));
}

Saved safe_keep(Saved keep, const AbnTensors& t) {
  if (keep != Saved::kPreActivation || t.x.is_meta()) return keep;
  const OptionalTensor no_residual;  // y is kept before it is added
  const RecoveryLayer layer{Activation::kIdentity, t.x.scalar_type(), t.x.size(1)};
  const RecoveryTensors tensors{t.weight, t.bias, no_residual};
  const auto choice = choose_degenerate_channels(layer, tensors, t.x);
  return choice && choice->channels.empty() ? Saved::kPreActivation : Saved::kNormalized;
}

AbnForwardArguments arguments_of(const AbnTensors& t, const AbnOptions& options, bool for_backward) {
  const bool moved = options.training && recomputing();
  return {{t.residual, t.weight, t.bias, options.activation, options.activation_param, options.keep,
           options.relu_residual},
          moved ? std::nullopt : t.running_mean,
          moved ? std::nullopt : t.running_var,
          options.training,
          options.momentum,
          options.eps,
          for_backward};
}

at::Tensor kept_of(Saved keep, const at::Tensor& x, const AbnForwardResult& result) {
  switch (keep) {
    case Saved::kInput:
      return x;
    case Saved::kPreActivation:
    case Saved::kNormalized:
      return result.kept;
    default:
      return result.z;
  }
}

void save(AutogradContext* ctx, at::Tensor kept, const AbnForwardArguments& a,
          const AbnStatistics& statistics, at::ArrayRef<at::Tensor> more) {
  const AbnSettings& s = a.settings;
  const auto wants = [](const OptionalTensor& tensor) { return tensor && tensor->requires_grad(); };
  const bool only_scaled = !a.training && s.activation == Activation::kIdentity && !wants(s.weight) &&
                           !wants(s.bias) && !s.residual && more.size() == 0;
  at::Tensor side = SideBuffer::revealed(statistics.side);
  if (only_scaled) kept = at::Tensor();
  // Bits, and what lies beside z, are in the order of the values in memory: see saved_arguments.
  if (saves_output(s.keep) && kept.defined())
    ctx->saved_data["channels_last"] =
        preferred_layout(kept.sym_sizes(), kept.sym_strides()) == Layout::kChannelsLast;
  variable_list tensors{std::move(kept),
                        std::move(side),
                        s.keep == Saved::kInput ? statistics.mean : at::Tensor(),
                        statistics.inv_std,
                        s.weight.value_or(at::Tensor()),
                        s.bias.value_or(at::Tensor()),
                        s.residual.value_or(at::Tensor()),
                        statistics.branch};
  tensors.insert(tensors.end(), more.begin(), more.end());
  ctx->save_for_backward(std::move(tensors));
  ctx->saved_data["training"] = a.training;
  ctx->saved_data["activation"] = std::string(activation_name(s.activation));
  ctx->saved_data["activation_param"] = s.activation_param;
  ctx->saved_data["keep"] = std::string(keep_name(s.keep));
  ctx->saved_data["relu_residual"] = s.relu_residual;
}

AbnBackwardArguments saved_arguments(AutogradContext* ctx) {
  return saved_arguments(ctx, ctx->get_saved_variables());
}

AbnBackwardArguments saved_arguments(AutogradContext* ctx, const variable_list& saved) {
  const auto optional = [](const at::Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; };
  AbnBackwardArguments a;
  a.settings = {optional(saved[6]),
                optional(saved[4]),
                optional(saved[5]),
                activation_from_name(ctx->saved_data["activation"].toStringRef()),
                ctx->saved_data["activation_param"].toDouble(),
                keep_from_name(ctx->saved_data["keep"].toStringRef()),
                ctx->saved_data["relu_residual"].toBool()};
  a.kept = saved[0];
  a.branch = saved[7];
  a.side = saved[1];
  const bool in_memory_order = a.branch.defined() || a.side.sym_numel() != 0;
  // Whoever copied what was saved may have laid it out anew.
  if (in_memory_order && saves_output(a.settings.keep) && a.kept.defined()) {
    const Layout layout = ctx->saved_data["channels_last"].toBool() ? Layout::kChannelsLast : Layout::kNCHW;
    if (preferred_layout(a.kept.sym_sizes(), a.kept.sym_strides()) != layout)
      a.kept = dense_in(layout, a.kept);
  }
  a.inv_std = saved[3];
  a.mean = saved[2].defined() ? saved[2] : a.inv_std;  // a stand-in: only a layer that kept x reads it
  a.training = ctx->saved_data["training"].toBool();
  return a;
}

AbnEdges::AbnEdges(AutogradContext* ctx, AbnBackwardArguments& a, int first_edge) {
  int edge = first_edge;
  a.need_dx = ctx->needs_input_grad(edge++);
  if (a.settings.weight) {
    dweight_ = ctx->needs_input_grad(edge++);
    weight_type_ = a.settings.weight->scalar_type();
  }
  if (a.settings.bias) {
    dbias_ = ctx->needs_input_grad(edge++);
    bias_type_ = a.settings.bias->scalar_type();
  }
  if (a.settings.residual) a.need_dresidual = ctx->needs_input_grad(edge++);
  a.need_sums = dweight_ || dbias_;
  next_ = edge;
}

variable_list AbnEdges::in_order(AbnGradients g, std::initializer_list<at::Tensor> rest) const {
  variable_list result{std::move(g.dx), dweight_ ? g.dweight.to(weight_type_) : at::Tensor(),
                       dbias_ ? g.dbias.to(bias_type_) : at::Tensor(), std::move(g.dresidual)};
  result.insert(result.end(), rest.begin(), rest.end());
  return result;
}

}  // namespace palimpsest::ops
