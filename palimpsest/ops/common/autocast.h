#pragma once

#include "palimpsest/ops/autocast.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

namespace palimpsest::ops {

/// Returns t, rounded to `storage` and then converted to the compute type.
inline at::Tensor operand(const at::Tensor& t, const ProductPrecision& precision) {
  return t.to(precision.storage).to(precision.compute_type());
}

/// Returns a tensor of dtype `type` with the shape and layout of t, for calls that do not read its values.
at::Tensor shape_of(const at::Tensor& t, at::ScalarType type);

void save_precision(torch::autograd::AutogradContext* ctx, const std::optional<ProductPrecision>& precision);
std::optional<ProductPrecision> saved_precision(torch::autograd::AutogradContext* ctx);

}  // namespace palimpsest::ops
