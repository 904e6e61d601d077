#pragma once

#include "palimpsest/ops/abn.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace palimpsest::ops {

/// The tensors of one call, as its caller gave them.
struct AbnTensors {
  const at::Tensor& x;
  const std::optional<at::Tensor>& weight;
  const std::optional<at::Tensor>& bias;
  const std::optional<at::Tensor>& running_mean;
  const std::optional<at::Tensor>& running_var;
  const std::optional<at::Tensor>& residual;
};

/// Every requirement of the layer, checked once, here: kernels assume. Raises c10::Error "[abn] requirement,
/// got value".
void check_abn(const AbnTensors& tensors, const AbnOptions& options);

/// What writing over `x` needs beyond that; `differentiable`: a gradient will be asked of the result.
void check_in_place(const at::Tensor& x, Saved keep, bool differentiable);

}  // namespace palimpsest::ops
