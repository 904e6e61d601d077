#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <cstdint>
#include <optional>
#include <tuple>

/// The passes without autograd. schema.cpp registers `native` for the CPU, `meta` for tracing; forward() goes
/// through libtorch's dispatcher.
namespace palimpsest::ops::upsampled_loss_detail {

struct LossArguments {
  const std::optional<at::Tensor>& weight;
  int64_t ignore_index;
  double label_smoothing;
  bool align_corners;
  double bootstrap_share, bootstrap_probability;
};

/// Returns [sum of the losses, sum of the weights, number of pixels] (f64), and the gradient of the first
/// with the logits, f32 or f64; shape (0) unless `for_backward`.
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& logits, const at::Tensor& targets,
                                           const LossArguments& arguments, bool for_backward);

namespace native {
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& logits, const at::Tensor& targets,
                                           const LossArguments& arguments, bool for_backward);
at::Tensor argmax(const at::Tensor& logits, at::IntArrayRef size, bool align_corners);
}  // namespace native

namespace meta {
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& logits, const at::Tensor& targets,
                                           const LossArguments& arguments, bool for_backward);
at::Tensor argmax(const at::Tensor& logits, c10::SymIntArrayRef size, bool align_corners);
}  // namespace meta

}  // namespace palimpsest::ops::upsampled_loss_detail
