#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace palimpsest::ops {

/// Returns x weight^T + bias. x: (..., in); weight: (out, in); bias: (out) or none. Without autocast it calls
/// at::linear. Under autocast it runs in autocast's dtype, or in f32 on operands that are rounded to it where
/// the processor does not multiply it faster than f32 (product_precision), and saves its 16-bit input and the
/// weight as given, not a 16-bit copy of the weight (ops/autocast.h); double backward is then an error.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);

}  // namespace palimpsest::ops
