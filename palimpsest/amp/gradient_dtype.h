#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace palimpsest::amp {

/// Makes backward accumulate the gradients of f32 `parameters` in `dtype`: f32, which is the default, or f16
/// or bf16, which take half of the memory. A term below 2^-11 of the sum in f16, or 2^-8 in bf16, may vanish:
/// 16 bits suffice for a few accumulated passes. GradScaler::unscale_ converts complete gradients to f32, so
/// any optimizer can use them.
/// Throws Error(kUsage) for another dtype, for parameters that are no f32 leaves, or if a parameter has a
/// gradient of another dtype.
void accumulate_gradients_in(at::ScalarType dtype, const std::vector<at::Tensor>& parameters);

}  // namespace palimpsest::amp
