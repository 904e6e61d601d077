#pragma once

#include "palimpsest/kernels/exponent_histogram.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest::ops {

/// Exponents e of f32: 2^e <= |v| < 2^(e + 1), subnormal numbers included.
using kernels::kHighestExponent;
using kernels::kLowestExponent;

/// How many values of a tensor have each binary exponent.
struct ExponentCounts {
  int64_t zero = 0, infinite = 0, nan = 0;
  std::vector<int64_t> finite;  ///< element i: values of exponent kLowestExponent + i
};

/// Counts the values of t, of any shape and strides; f32, f16 or bf16, otherwise throws c10::Error. A GPU
/// counts in one launch, and the host waits for a copy of 2 KB. A tensor on another device is copied to the
/// CPU first.
ExponentCounts exponent_counts(const at::Tensor& t);

}  // namespace palimpsest::ops
