#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace palimpsest::ops {

/// Moves running statistics towards those of a batch with `m` values per channel, by libtorch's operators, in
/// f64, rounded once to the dtype of the running statistics:
///   running <- running + momentum * (batch - running), with the unbiased variance (over m - 1).
/// `mean`, `var` (biased): (C), f64. Does nothing if `running_mean` is absent.
void move_running_statistics(const std::optional<at::Tensor>& running_mean,
                             const std::optional<at::Tensor>& running_var, double momentum,
                             const at::Tensor& mean, const at::Tensor& var, double m);
/// The same with `m` as a (1) f64 tensor, which may lie on a GPU. Below 2 values nothing moves.
void move_running_statistics(const std::optional<at::Tensor>& running_mean,
                             const std::optional<at::Tensor>& running_var, double momentum,
                             const at::Tensor& mean, const at::Tensor& var, const at::Tensor& m);

}  // namespace palimpsest::ops
