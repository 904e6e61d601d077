#pragma once

#include "palimpsest/base/dtype.h"

#include <array>
#include <cstdint>

/// Counts how many values of a tensor lie in each power of two. The histogram shows which gradients f16 loses
/// (below 2^-24), which overflow (above 65504), and which loss scale would save them.
/// Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, figures 2 and 3.
namespace palimpsest::kernels {

/// Exponents e of f32, subnormal numbers included: 2^e <= |v| < 2^(e + 1).
inline constexpr int kLowestExponent = -149, kHighestExponent = 127;

/// The order of the counts: zeros, then kLowestExponent to kHighestExponent, infinities, NaNs.
inline constexpr int kZeroBin = 0;
inline constexpr int kInfinityBin = kHighestExponent - kLowestExponent + 2;
inline constexpr int kNaNBin = kInfinityBin + 1;
inline constexpr int kExponentBins = kNaNBin + 1;
constexpr int bin_of_exponent(int exponent) {
  return exponent - kLowestExponent + 1;
}

using ExponentHistogram = std::array<int64_t, kExponentBins>;

namespace cpu {

/// Adds the `n` values at `x` to `counts`. x: f32, f16 or bf16 (f64 throws std::invalid_argument), no
/// alignment required.
void exponent_histogram(DType dtype, const void* x, int64_t n, ExponentHistogram& counts);

}  // namespace cpu

/// The same function as a plain loop, which is the reference of the tests.
namespace reference {

void exponent_histogram(DType dtype, const void* x, int64_t n, ExponentHistogram& counts);

}  // namespace reference

}  // namespace palimpsest::kernels
