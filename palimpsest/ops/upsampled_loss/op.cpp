#include "palimpsest/ops/common/find_operator.h"
#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/upsampled_loss.h"
#include "palimpsest/ops/upsampled_loss/native.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace palimpsest::ops::upsampled_loss_detail {
namespace meta {

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& logits, const at::Tensor& /*targets*/,
                                           const LossArguments& /*arguments*/, bool for_backward) {
  const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {at::empty({3}, logits.options().dtype(at::kDouble).memory_format(std::nullopt)),
          for_backward ? at::empty_like(logits, logits.options().dtype(type), logits.suggest_memory_format())
                       : at::empty({0}, logits.options().dtype(type).memory_format(std::nullopt))};
}

at::Tensor argmax(const at::Tensor& logits, c10::SymIntArrayRef size, bool /*align_corners*/) {
  TORCH_CHECK(size.size() == 2, "[upsampled_argmax] size must be two numbers (height, width), got ", size);
  return at::empty_symint({logits.sym_size(0), size[0], size[1]},
                          logits.options().dtype(at::kLong).memory_format(std::nullopt));
}

}  // namespace meta

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns 1 / sum of the weights, 0 if no pixel counts.
at::Tensor inverse_weight(const at::Tensor& sums) {
  const at::Tensor weight = sums.select(0, 1);
  return at::where(weight > 0, weight.reciprocal(), at::zeros_like(weight));
}

at::Tensor mean_loss(const at::Tensor& sums, const at::Tensor& logits) {
  return (sums.select(0, 0) * inverse_weight(sums))
      .to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

class LossFunction : public torch::autograd::Function<LossFunction> {
 public:
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& targets,
                               const std::optional<at::Tensor>& weight, int64_t ignore_index,
                               double label_smoothing, bool align_corners, double share, double probability) {
    const auto [sums, gradient] = upsampled_loss_detail::forward(
        logits, targets, {weight, ignore_index, label_smoothing, align_corners, share, probability},
        /*for_backward=*/true);
    ctx->save_for_backward({gradient, inverse_weight(sums)});
    ctx->saved_data["dtype"] = logits.scalar_type();
    at::Tensor total = sums.select(0, 1).clone();
    ctx->mark_non_differentiable({total});
    return {mean_loss(sums, logits), total};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    refuse_double_backward("upsampled_cross_entropy",
                           "at::upsample_bilinear2d and at::cross_entropy_loss (torch.nn.functional)");
    at::Tensor dx;
    if (gradients[0].defined()) {
      const auto saved = ctx->get_saved_variables();
      const at::Tensor scale = (gradients[0].to(at::kDouble) * saved[1]).to(saved[0].scalar_type());
      dx = (saved[0] * scale).to(ctx->saved_data["dtype"].toScalarType());
    }
    return {dx, {}, {}, {}, {}, {}, {}, {}};
  }
};

std::tuple<at::Tensor, at::Tensor> loss_and_weight(const at::Tensor& logits, const at::Tensor& targets,
                                                   const std::optional<at::Tensor>& weight,
                                                   int64_t ignore_index, double label_smoothing,
                                                   bool align_corners, double share, double probability) {
  TORCH_CHECK(!(c10::GradMode::is_enabled() && weight && weight->defined() && weight->requires_grad()),
              "[upsampled_cross_entropy] weight has no gradient: pass weight.detach()");
  if (c10::GradMode::is_enabled() && logits.requires_grad()) {
    const auto results = LossFunction::apply(logits, targets, weight, ignore_index, label_smoothing,
                                             align_corners, share, probability);
    return {results[0], results[1]};
  }
  const at::Tensor sums = std::get<0>(
      forward(logits, targets, {weight, ignore_index, label_smoothing, align_corners, share, probability},
              /*for_backward=*/false));
  return {mean_loss(sums, logits), sums.select(0, 1).clone()};
}

template <auto kForward>
std::tuple<at::Tensor, at::Tensor> forward_of(const at::Tensor& logits, const at::Tensor& targets,
                                              const std::optional<at::Tensor>& weight, int64_t ignore_index,
                                              double label_smoothing, bool align_corners, double share,
                                              double probability, bool for_backward) {
  return kForward(logits, targets, {weight, ignore_index, label_smoothing, align_corners, share, probability},
                  for_backward);
}

TORCH_LIBRARY_FRAGMENT(palimpsest, m) {
  m.def(
      "upsampled_cross_entropy(Tensor logits, Tensor targets, Tensor? weight=None, int ignore_index=255, "
      "float label_smoothing=0., bool align_corners=False, float bootstrap_share=1., "
      "float bootstrap_probability=1.) -> (Tensor, Tensor)",
      &loss_and_weight);
  m.def(
      "upsampled_cross_entropy_forward(Tensor logits, Tensor targets, Tensor? weight, int ignore_index, "
      "float label_smoothing, bool align_corners, float bootstrap_share, float bootstrap_probability, "
      "bool for_backward) -> (Tensor, Tensor)");
  m.def("upsampled_argmax(Tensor logits, SymInt[2] size, bool align_corners=False) -> Tensor");
}

void register_native(torch::Library& m) {
  m.impl("upsampled_cross_entropy_forward", &forward_of<native::forward>);
  m.impl("upsampled_argmax", &native::argmax);
}
TORCH_LIBRARY_IMPL(palimpsest, CPU, m) {
  register_native(m);
}
TORCH_LIBRARY_IMPL(palimpsest, CUDA, m) {
  register_native(m);
}
TORCH_LIBRARY_IMPL(palimpsest, Meta, m) {
  m.impl("upsampled_cross_entropy_forward", &forward_of<meta::forward>);
  m.impl("upsampled_argmax", &meta::argmax);
}

// A gradient through the inner pass is an error. Otherwise it would be silently wrong.
TORCH_LIBRARY_IMPL(palimpsest, Autograd, m) {
  m.impl("upsampled_cross_entropy_forward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& logits, const at::Tensor& targets,
                                           const LossArguments& a, bool for_backward) {
  static const auto op =
      find_operator("palimpsest::upsampled_cross_entropy_forward", forward_of<native::forward>);
  return op.call(logits, targets, a.weight, a.ignore_index, a.label_smoothing, a.align_corners,
                 a.bootstrap_share, a.bootstrap_probability, for_backward);
}

}  // namespace palimpsest::ops::upsampled_loss_detail

namespace palimpsest::ops {

UpsampledCrossEntropy upsampled_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                              const UpsampledCrossEntropyOptions& o) {
  auto [loss, weight] =
      upsampled_loss_detail::loss_and_weight(logits, targets, o.weight, o.ignore_index, o.label_smoothing,
                                             o.align_corners, o.bootstrap_share, o.bootstrap_probability);
  return {std::move(loss), std::move(weight)};
}

at::Tensor upsampled_argmax(const at::Tensor& logits, at::IntArrayRef size, bool align_corners) {
  static const auto op = find_operator("palimpsest::upsampled_argmax", upsampled_loss_detail::meta::argmax);
  return op.call(logits, c10::fromIntArrayRefSlow(size), align_corners);
}

}  // namespace palimpsest::ops
