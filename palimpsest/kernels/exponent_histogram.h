#pragma once

#include "palimpsest/base/dtype.h"

#include <array>
#include <cstdint>

/// How many values of a tensor lie in each power of two: the picture that says which gradients f16 loses
/// (below 2^-24) and which overflow (65504 and above), and by what scale they can be saved.
/// Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, figures 2 and 3.
namespace palimpsest::kernels {

/// Exponents e of f32, subnormal numbers included: 2^e <= |v| < 2^(e + 1).
inline constexpr int kLowestExponent = -149, kHighestExponent = 127;

/// Where values are counted: zeros, then kLowestExponent to kHighestExponent, infinities, NaNs.
inline constexpr int kZeroBin = 0;
inline constexpr int kInfinityBin = kHighestExponent - kLowestExponent + 2;
inline constexpr int kNaNBin = kInfinityBin + 1;
inline constexpr int kExponentBins = kNaNBin + 1;
constexpr int bin_of_exponent(int exponent) {
  return exponent - kLowestExponent + 1;
}

using ExponentCounts = std::array<int64_t, kExponentBins>;

/// Adds the `n` values at `x` to `counts`. x: f32, f16 or bf16 (f64 throws std::invalid_argument), no
/// alignment required.
namespace reference {
void exponent_histogram(DType dtype, const void* x, int64_t n, ExponentCounts& counts);
}
namespace cpu {
void exponent_histogram(DType dtype, const void* x, int64_t n, ExponentCounts& counts);
}

}  // namespace palimpsest::kernels
