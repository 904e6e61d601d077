#include "palimpsest/ops/upsampled_loss.h"

#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/upsampled_loss/functional.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace palimpsest::ops::upsampled_loss_detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor loss_of(const at::Tensor& sums, const at::Tensor& logits, bool mean) {
  if (!mean) return sums.select(0, 0).clone();
  return mean_loss(sums.select(0, 0), sums.select(0, 1))
      .to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

class LossFunction : public torch::autograd::Function<LossFunction> {
 public:
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& targets,
                               const std::optional<at::Tensor>& weight, int64_t ignore_index,
                               double label_smoothing, bool align_corners, double share, double probability,
                               bool checks_targets, bool mean) {
    const auto [sums, gradient] = upsampled_loss_detail::forward(
        logits, targets,
        {weight, ignore_index, label_smoothing, align_corners, share, probability, checks_targets},
        /*for_backward=*/true);
    at::Tensor total = sums.select(0, 1).clone(), first_wrong = sums.select(0, 3).clone();
    ctx->save_for_backward({gradient, mean ? total.detach() : at::Tensor()});
    ctx->saved_data["dtype"] = logits.scalar_type();
    ctx->mark_non_differentiable({total, first_wrong});
    return {loss_of(sums, logits, mean), total, first_wrong};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    refuse_double_backward("upsampled_cross_entropy",
                           "at::upsample_bilinear2d and at::cross_entropy_loss (torch.nn.functional)");
    at::Tensor dx;
    if (gradients[0].defined()) {
      const auto saved = ctx->get_saved_variables();
      const at::Tensor of_sum =
          saved[1].defined() ? mean_loss(gradients[0].to(at::kDouble), saved[1]) : gradients[0];
      dx = (saved[0] * of_sum.to(saved[0].scalar_type())).to(ctx->saved_data["dtype"].toScalarType());
    }
    return {dx, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> loss_and_weight(const at::Tensor& logits,
                                                               const at::Tensor& targets,
                                                               const LossArguments& a) {
  TORCH_CHECK(!(c10::GradMode::is_enabled() && a.weight && a.weight->defined() && a.weight->requires_grad()),
              "[upsampled_cross_entropy] weight has no gradient: pass weight.detach()");
  if (c10::GradMode::is_enabled() && logits.requires_grad()) {
    const auto results =
        LossFunction::apply(logits, targets, a.weight, a.ignore_index, a.label_smoothing, a.align_corners,
                            a.bootstrap_share, a.bootstrap_probability, a.checks_targets, a.mean);
    return {results[0], results[1], results[2]};
  }
  const at::Tensor sums = std::get<0>(forward(logits, targets, a, /*for_backward=*/false));
  return {loss_of(sums, logits, a.mean), sums.select(0, 1).clone(), sums.select(0, 3).clone()};
}

}  // namespace palimpsest::ops::upsampled_loss_detail

namespace palimpsest::ops {

at::Tensor mean_loss(const at::Tensor& sum, const at::Tensor& weight) {
  return sum * at::where(weight > 0, weight.reciprocal(), at::zeros_like(weight));
}

UpsampledCrossEntropy upsampled_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                              const UpsampledCrossEntropyOptions& o) {
  auto [loss, weight, first_wrong] = upsampled_loss_detail::loss_and_weight(
      logits, targets,
      {o.weight, o.ignore_index, o.label_smoothing, o.align_corners, o.bootstrap_share,
       o.bootstrap_probability, o.checks_targets, o.mean});
  return {std::move(loss), std::move(weight), std::move(first_wrong)};
}

}  // namespace palimpsest::ops
