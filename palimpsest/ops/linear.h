#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace palimpsest::ops {

/// x weight^T + bias. x: (..., in); weight: (out, in); bias: (out) or none. Without autocast it is
/// at::linear. Under autocast it runs in autocast's dtype and saves its 16-bit input and the weight as given,
/// no 16-bit copy (ops/common/autocast.h); double backward is an error then.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);

}  // namespace palimpsest::ops
