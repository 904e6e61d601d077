#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace palimpsest::amp {

/// Has backward leave and add up the gradients of f32 `parameters` in `dtype`: f32, as without a call, or f16
/// or bf16, which take half of the memory. What is added to a 16-bit sum may vanish beside it (below 2^-11 of
/// it in f16, 2^-8 in bf16): for few accumulated passes. GradScaler::unscale_ makes them f32 when they are
/// whole, so that any optimizer can take them.
/// Throws Error(kUsage) for another dtype, or where a gradient of another type is there already.
void accumulate_gradients_in(at::ScalarType dtype, const std::vector<at::Tensor>& parameters);

}  // namespace palimpsest::amp
