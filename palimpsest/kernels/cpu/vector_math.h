#pragma once

// As vector.h: only for units that are compiled once per instruction set.

#include "palimpsest/kernels/activation.h"
#include "palimpsest/kernels/cpu/vector.h"

#include <cstdint>

namespace palimpsest::kernels {
namespace cpu::PALIMPSEST_ISA_NAMESPACE {

template <class T>
struct ExponentialConstants;

template <>
struct ExponentialConstants<float> {
  static constexpr int kMantissa = 23;
  static constexpr int32_t kBias = 127;
  static constexpr int32_t kSqrtHalfBits = 0x3f3504f3;
  static constexpr float kShifter = 0x1.8p23f;     ///< added, it leaves the nearest integer in the low bits
  static constexpr float kLn2High = 0x1.62e4p-1f;  ///< 16 bits: times any exponent without rounding
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kSaturated = -20;  ///< exp(v) - 1 rounds to -1 from here down
  // Taylor terms that the mantissa needs for |r| <= ln(2)/2, and of atanh for |s| <= 0.172.
  static constexpr int kExpTerms = 6;
  static constexpr int kAtanhTerms = 4;
};

template <>
struct ExponentialConstants<double> {
  static constexpr int kMantissa = 52;
  static constexpr int64_t kBias = 1023;
  static constexpr int64_t kSqrtHalfBits = 0x3fe6a09e667f3bcd;
  static constexpr double kShifter = 0x1.8p52;
  static constexpr double kLn2High = 0x1.62e42feep-1;  ///< 32 bits
  static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kSaturated = -40;
  static constexpr int kExpTerms = 12;
  static constexpr int kAtanhTerms = 10;
};

/// exp(v) - 1 for v <= 0, within 2 ulp; lanes above 0 come out as 0 (ELU does not look at them). NaN stays
/// NaN.
///   v = k ln 2 + r,  exp(v) - 1 = 2^k (exp(r) - 1) + (2^k - 1): the last term is exact.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V expm1_nonpositive(V v) {
  using K = ExponentialConstants<T>;
  using Int = Vector<typename Bits<T>::type>;
  v = v > T(0) ? V{} : v;
  v = v < K::kSaturated ? broadcast<V>(K::kSaturated) : v;
  const V shifted = v * T(1.4426950408889634) + K::kShifter;
  const V k = shifted - K::kShifter;
  const V r = (v - k * K::kLn2High) - k * K::kLn2Low;
  T factorial = 1;
  for (int i = 2; i <= K::kExpTerms + 1; ++i) factorial *= i;
  V p = broadcast<V>(1 / factorial);
  for (int i = K::kExpTerms + 1; i > 2; --i) {
    factorial /= i;
    p = p * r + 1 / factorial;
  }
  p = r + r * r * p;
  const V power = (V)(((Int)shifted << K::kMantissa) + (K::kBias << K::kMantissa));
  return power * p + (power - T(1));
}

/// log(1 + u) for -1 < u <= 0, within 2 ulp; lanes above 0 hold no meaning. NaN stays NaN.
///   1 + u = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); f = 2^-e u + (2^-e - 1) rounds once.
///   log(1 + f) = 2 atanh(s), s = f / (2 + f), summed as in fdlibm so that its leading term f is exact.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V log1p_nonpositive(V u) {
  using K = ExponentialConstants<T>;
  using Int = Vector<typename Bits<T>::type>;
  const Int e = ((Int)(u + T(1)) - K::kSqrtHalfBits) >> K::kMantissa;
  const V scale = (V)((K::kBias - e) << K::kMantissa);
  const V exponent = (V)((Int)broadcast<V>(K::kShifter) + e) - K::kShifter;
  const V f = u * scale + (scale - T(1));
  const V s = f / (f + T(2));
  const V s2 = s * s;
  V r = broadcast<V>(T(2) / (2 * K::kAtanhTerms + 1));
  for (int i = K::kAtanhTerms - 1; i >= 1; --i) r = r * s2 + T(2) / (2 * i + 1);
  const V half_square = f * f * T(0.5);
  const V tail = s * (half_square + r * s2) + exponent * K::kLn2Low;
  return exponent * K::kLn2High - ((half_square - tail) - f);
}

}  // namespace cpu::PALIMPSEST_ISA_NAMESPACE

template <>
struct Exponential<cpu::PALIMPSEST_ISA_NAMESPACE::Vector<float>> {
  using V = cpu::PALIMPSEST_ISA_NAMESPACE::Vector<float>;
  PALIMPSEST_HOST_DEVICE static V expm1(V v) {
    return cpu::PALIMPSEST_ISA_NAMESPACE::expm1_nonpositive<float>(v);
  }
  PALIMPSEST_HOST_DEVICE static V log1p(V v) {
    return cpu::PALIMPSEST_ISA_NAMESPACE::log1p_nonpositive<float>(v);
  }
};
template <>
struct Exponential<cpu::PALIMPSEST_ISA_NAMESPACE::Vector<double>> {
  using V = cpu::PALIMPSEST_ISA_NAMESPACE::Vector<double>;
  PALIMPSEST_HOST_DEVICE static V expm1(V v) {
    return cpu::PALIMPSEST_ISA_NAMESPACE::expm1_nonpositive<double>(v);
  }
  PALIMPSEST_HOST_DEVICE static V log1p(V v) {
    return cpu::PALIMPSEST_ISA_NAMESPACE::log1p_nonpositive<double>(v);
  }
};

}  // namespace palimpsest::kernels
