#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace palimpsest::ops {

/// Moves running statistics towards those of a batch with `m` values a channel, by libtorch's operators, in
/// the running ones' type:
///   running <- running + momentum * (batch - running), with the unbiased variance (over m - 1).
/// `mean`, `var` (biased): (C), f64. Nothing happens where `running_mean` is absent.
void move_running_statistics(const std::optional<at::Tensor>& running_mean,
                             const std::optional<at::Tensor>& running_var, double momentum,
                             const at::Tensor& mean, const at::Tensor& var, double m);

}  // namespace palimpsest::ops
