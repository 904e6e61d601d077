#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

/// 16-bit floating point as storage: conversions from and to double, one value at a time, for the reference
/// kernels and for tests. (The CPU kernels convert whole vectors: kernels/cpu/simd/storage.h.) A conversion
/// rounds once, to nearest, ties to even.
namespace palimpsest {
namespace detail {

/// Returns the binary exponent of a double; -1023 for zero and subnormal numbers, 1024 for infinity and NaN.
inline int exponent_of(double value) {
  return static_cast<int>(std::bit_cast<uint64_t>(value) >> 52 & 0x7ff) - 1023;
}

/// Returns 2^exponent * (1 + mantissa / 2^52); `exponent` must be the exponent of a normal number.
inline double assemble(int exponent, uint64_t mantissa) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52 | mantissa);
}

/// Returns `value`, rounded to `digits` significant binary digits, but to no finer step than 2^`lowest`.
inline double round_to(double value, int digits, int lowest) {
  const int exponent = exponent_of(value);
  if (exponent > 512) return value;  // beyond both 16-bit formats: the caller makes it infinite
  const int step = std::max(exponent - digits + 1, lowest);
  // A double of this size has no digits below 2^step, so the addition rounds. It takes 10 ns; ldexp and
  // nearbyint took 43 ns, and the kernels' tests spent a fifth of their time in conversions.
  const double large = assemble(step + 52, uint64_t{1} << 51);
  return std::copysign(value + large - large, value);
}

}  // namespace detail

/// Brain floating point: the upper half of an f32.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(double value) {
    const double rounded = detail::round_to(value, 8, -133);
    bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(rounded)) >> 16);
    if (std::isnan(value)) bits = 0x7fc0;
  }
  explicit operator double() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

/// IEEE half precision.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  explicit Float16(double value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::abs(detail::round_to(value, 11, -24));
    if (std::isnan(value)) {
      bits = 0x7e00;
    } else if (size >= 65536) {
      bits = sign | 0x7c00;
    } else if (size < 0x1p-14) {
      bits = sign | static_cast<uint16_t>(size * 0x1p24);
    } else {
      bits = sign | static_cast<uint16_t>(((detail::exponent_of(size) + 15) << 10) +
                                          (std::bit_cast<uint64_t>(size) >> 42 & 1023));
    }
  }
  explicit operator double() const {
    const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
    const double size = exponent == 31 ? (mantissa ? NAN : INFINITY)
                        : exponent == 0
                            ? mantissa * 0x1p-24
                            : detail::assemble(exponent - 15, static_cast<uint64_t>(mantissa) << 42);
    return bits & 0x8000 ? -size : size;
  }
};

}  // namespace palimpsest
