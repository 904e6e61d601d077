#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace palimpsest {

/// 16-bit floating point as storage: conversions only, one value at a time, each rounded once (to nearest,
/// ties to even). For references and tests; the CPU kernels convert whole vectors (kernels/cpu/storage.h).
namespace detail {

/// `value` rounded to `digits` significant binary digits, and to multiples of 2^`lowest` where it is small.
inline double round_to(double value, int digits, int lowest) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::ilogb(value) - digits + 1;
  const int step = exponent < lowest ? lowest : exponent;
  return std::ldexp(std::nearbyint(std::ldexp(value, -step)), step);
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
      const int exponent = std::ilogb(size);
      bits = sign | static_cast<uint16_t>(((exponent + 15) << 10) +
                                          static_cast<int>(std::ldexp(size, 10 - exponent) - 1024));
    }
  }
  explicit operator double() const {
    const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
    const double size = exponent == 31  ? (mantissa ? NAN : INFINITY)
                        : exponent == 0 ? mantissa * 0x1p-24
                                        : std::ldexp(1024 + mantissa, exponent - 25);
    return bits & 0x8000 ? -size : size;
  }
};

}  // namespace palimpsest
