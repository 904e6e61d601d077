#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

/// The passes of upsampled_cross_entropy without autograd. forward() goes through libtorch's dispatcher, so
/// tracing records it.
namespace palimpsest::ops::upsampled_loss_detail {

struct LossArguments {
  const std::optional<at::Tensor>& weight;
  int64_t ignore_index;
  double label_smoothing;
  bool align_corners;
  double bootstrap_share, bootstrap_probability;
  bool checks_targets = true;
  bool mean = true;  ///< of loss_and_weight; else the sum, f64
};

/// Returns [sum of the losses, sum of the weights, number of pixels, place of the first wrong target] (f64),
/// and the gradient of the first with the logits, f32 or f64; shape (0) unless `for_backward`. The place is
/// at least the number of targets if none is wrong.
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& logits, const at::Tensor& targets,
                                           const LossArguments& arguments, bool for_backward);

/// upsampled_cross_entropy with its options as arguments: the loss, the weight and the place of the first
/// wrong target.
std::tuple<at::Tensor, at::Tensor, at::Tensor> loss_and_weight(const at::Tensor& logits,
                                                               const at::Tensor& targets,
                                                               const LossArguments& arguments);

}  // namespace palimpsest::ops::upsampled_loss_detail
