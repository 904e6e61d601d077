#pragma once

#include "palimpsest/kernels/upsampled_loss.h"
#include "palimpsest/ops/upsampled_loss/native.h"

namespace palimpsest::ops::upsampled_loss_detail {

/// forward() on a GPU. `values`: f32 or f64 in the layout of `problem`; `ids`: contiguous; `weight`: f64,
/// contiguous, undefined if there is none. With `checks_targets` the host waits for the device once, to see
/// whether a target is no class, and `first_wrong` is its place or -1. Without it, and while a CUDA graph is
/// captured, such a target is treated as ignored.
std::tuple<at::Tensor, at::Tensor> forward_on_gpu(const kernels::UpsampledProblem& problem,
                                                  const at::Tensor& values, const at::Tensor& ids,
                                                  const at::Tensor& weight, const LossArguments& arguments,
                                                  bool for_backward, int64_t& first_wrong);

void argmax_on_gpu(const kernels::UpsampledProblem& problem, const at::Tensor& values, at::Tensor& ids);

}  // namespace palimpsest::ops::upsampled_loss_detail
