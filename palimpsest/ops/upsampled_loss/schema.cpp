#include "palimpsest/ops/common/find_operator.h"
#include "palimpsest/ops/upsampled_loss.h"
#include "palimpsest/ops/upsampled_loss/native.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

/// torch.ops.palimpsest.upsampled_*. upsampled_cross_entropy is composite, as abn is (abn/schema.cpp).
namespace palimpsest::ops::upsampled_loss_detail {
namespace {

template <auto kForward>
std::tuple<at::Tensor, at::Tensor> forward_of(const at::Tensor& logits, const at::Tensor& targets,
                                              const std::optional<at::Tensor>& weight, int64_t ignore_index,
                                              double label_smoothing, bool align_corners, double share,
                                              double probability, bool for_backward, bool checks_targets) {
  return kForward(logits, targets,
                  {weight, ignore_index, label_smoothing, align_corners, share, probability, checks_targets},
                  for_backward);
}

std::tuple<at::Tensor, at::Tensor> cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                                 const std::optional<at::Tensor>& weight,
                                                 int64_t ignore_index, double label_smoothing,
                                                 bool align_corners, double share, double probability) {
  auto [loss, total, first_wrong] = loss_and_weight(
      logits, targets, {weight, ignore_index, label_smoothing, align_corners, share, probability});
  return {std::move(loss), std::move(total)};
}

TORCH_LIBRARY_FRAGMENT(palimpsest, m) {
  m.def(
      "upsampled_cross_entropy(Tensor logits, Tensor targets, Tensor? weight=None, int ignore_index=255, "
      "float label_smoothing=0., bool align_corners=False, float bootstrap_share=1., "
      "float bootstrap_probability=1.) -> (Tensor, Tensor)",
      &cross_entropy);
  m.def(
      "upsampled_cross_entropy_forward(Tensor logits, Tensor targets, Tensor? weight, int ignore_index, "
      "float label_smoothing, bool align_corners, float bootstrap_share, float bootstrap_probability, "
      "bool for_backward, bool checks_targets=True) -> (Tensor, Tensor)");
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
                 a.bootstrap_share, a.bootstrap_probability, for_backward, a.checks_targets);
}

}  // namespace palimpsest::ops::upsampled_loss_detail

namespace palimpsest::ops {

at::Tensor upsampled_argmax(const at::Tensor& logits, at::IntArrayRef size, bool align_corners) {
  static const auto op = find_operator("palimpsest::upsampled_argmax", upsampled_loss_detail::meta::argmax);
  return op.call(logits, c10::fromIntArrayRefSlow(size), align_corners);
}

}  // namespace palimpsest::ops
