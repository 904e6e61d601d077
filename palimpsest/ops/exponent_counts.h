#pragma once

#include "palimpsest/kernels/exponent_histogram.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest::ops {

using kernels::kHighestExponent;
using kernels::kLowestExponent;

/// How many values of a tensor lie where (kernels/exponent_histogram.h).
struct ExponentCounts {
  int64_t zero = 0, infinite = 0, nan = 0;
  std::vector<int64_t> finite;  ///< of exponent kLowestExponent + i
};

/// Of t: any shape and strides; f32, f16 or bf16, else c10::Error. What lies on a GPU is counted there:
/// one launch, and a copy of 2 KB that is waited for; a tensor of another device is copied to the CPU.
ExponentCounts exponent_counts(const at::Tensor& t);

}  // namespace palimpsest::ops
