#pragma once

// Only for units of one instruction set, as vector.h. Exponentials and logarithms of vectors.

#include "palimpsest/kernels/cpu/simd/vector.h"
#include "palimpsest/kernels/formulas/activation.h"

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
  static constexpr float kLowestExponent = -126;
  static constexpr float kNormalExp = -87;      ///< exp(v) is a normal number from here up
  static constexpr float kExpUnderflow = -104;  ///< exp(v) is below half the smallest subnormal: 0
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
  static constexpr double kLowestExponent = -1022;
  static constexpr double kNormalExp = -708;
  static constexpr double kExpUnderflow = -745.5;
};

/// v = k ln 2 + r with |r| <= ln(2) / 2.
template <class V, class Int>
struct Reduced {
  V k, r;
  Int shifted;  ///< k in the low bits
};

template <class T, class V>
PALIMPSEST_HOST_DEVICE auto reduce_by_ln2(V v) {
  using K = ExponentialConstants<T>;
  using Int = Vector<typename Bits<T>::type>;
  const V shifted = v * T(1.4426950408889634) + K::kShifter;
  const V k = shifted - K::kShifter;
  return Reduced<V, Int>{k, (v - k * K::kLn2High) - k * K::kLn2Low, (Int)shifted};
}

/// Returns exp(r) - 1 for |r| <= ln(2) / 2.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V expm1_polynomial(V r) {
  using K = ExponentialConstants<T>;
  T factorial = 1;
  for (int i = 2; i <= K::kExpTerms + 1; ++i) factorial *= i;
  V p = broadcast<V>(1 / factorial);
  for (int i = K::kExpTerms + 1; i > 2; --i) {
    factorial /= i;
    p = p * r + 1 / factorial;
  }
  return r + r * r * p;
}

/// Returns exp(v) - 1 for v <= 0, within 2 ulp; 0 in lanes above 0, which ELU ignores. NaN stays NaN.
///   exp(v) - 1 = 2^k (exp(r) - 1) + (2^k - 1): the last term is exact.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V expm1_nonpositive(V v) {
  using K = ExponentialConstants<T>;
  v = v > T(0) ? V{} : v;
  v = v < K::kSaturated ? broadcast<V>(K::kSaturated) : v;
  const auto reduced = reduce_by_ln2<T>(v);
  const V power = (V)((reduced.shifted << K::kMantissa) + (K::kBias << K::kMantissa));
  return power * expm1_polynomial<T>(reduced.r) + (power - T(1));
}

#ifdef __AVX512F__
/// Returns v * 2^k for whole numbers k, rounded once.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V times_power_of_two(V v, V k) {
  if constexpr (sizeof(T) == sizeof(float))
    return (V)_mm512_maskz_scalef_ps(0xffff, (__m512)v, (__m512)k);
  else
    return (V)_mm512_maskz_scalef_pd(0xff, (__m512d)v, (__m512d)k);
}
#endif

/// Returns exp(v) for v <= 0, within 2 ulp if the result is normal; 1 in lanes above 0. NaN stays NaN.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V exp_nonpositive(V v) {
  using K = ExponentialConstants<T>;
  using Int = Vector<typename Bits<T>::type>;
  v = v > T(0) ? V{} : v;
  v = v < K::kExpUnderflow ? broadcast<V>(K::kExpUnderflow) : v;
  const auto reduced = reduce_by_ln2<T>(v);
#ifdef __AVX512F__
  if constexpr (sizeof(V) == 64)
    return times_power_of_two<T>(expm1_polynomial<T>(reduced.r) + T(1), reduced.k);
#endif
  // 2^k in two factors: a single one could not be subnormal.
  const V high = reduced.k < K::kLowestExponent ? broadcast<V>(K::kLowestExponent) : reduced.k;
  const Int high_bits = (Int)(high + K::kShifter), low_bits = (Int)((reduced.k - high) + K::kShifter);
  const V first = (V)((high_bits << K::kMantissa) + (K::kBias << K::kMantissa));
  const V second = (V)((low_bits << K::kMantissa) + (K::kBias << K::kMantissa));
  return (expm1_polynomial<T>(reduced.r) + T(1)) * first * second;
}

/// Returns exp(v) for v <= 0, within 2 ulp, or 0 where it would be subnormal or nearly so: an Intel Xeon takes over
/// 200 cycles for a vector with a result that underflows. 1 in lanes above 0. NaN stays NaN.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V exp_or_zero(V v) {
  using K = ExponentialConstants<T>;
  V normal = T(0) < v ? V{} : v;
  normal = normal < K::kNormalExp ? broadcast<V>(K::kNormalExp) : normal;
  const auto reduced = reduce_by_ln2<T>(normal);
  const V power = (V)((reduced.shifted << K::kMantissa) + (K::kBias << K::kMantissa));
  const V e = (expm1_polynomial<T>(reduced.r) + T(1)) * power;
  return v < K::kNormalExp ? V{} : e;
}

/// log(erfc(v)) + v^2 - log(t) with t = 2 / (2 + v) and x = (t - 0.525) / 0.475: a Chebyshev fit over t in
/// [0.05, 1], within 9e-8 for f32 and 2e-17 for f64.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V erfc_polynomial(V x) {
  // Local: a member would be a symbol that every instruction set shares.
  if constexpr (sizeof(T) == sizeof(float)) {
    constexpr T c[] = {-0.638049542f,  0.643169595f,    0.0362583135f,   -0.0416968363f,   -0.00622585361f,
                       0.00707941653f, 0.000775195638f, -0.00149006429f, -4.04664713e-05f, 0.000220327456f};
    return polynomial<T>(c, x);
  } else {
    constexpr T c[] = {-0.6380494854628525288,     0.64317012105748244977,     0.036255280179299524964,
                       -0.04170755742814281396,    -0.0061990404664694091425,  0.0071411946107510514269,
                       0.00068700835426960446304,  -0.0016378993016869989446,  0.00009486961481843220475,
                       0.00038125741168649765563,  -0.00010590096517018202772, -0.00007202828347376490581,
                       0.000046076481180082759282, 5.7477291862383856855e-6,   -0.000013555589861506057018,
                       2.7344116813518553385e-6,   2.5251726805860654032e-6,   -1.5161423921840596505e-6,
                       -9.2660115686010555468e-8,  3.8871889524431072772e-7,   -1.1088127323113642319e-7,
                       -4.7035674510881794277e-8,  3.5107203943950718364e-8,   -1.5345830572331591781e-9,
                       -4.0112215685357723068e-9,  9.1378242773897601885e-10};
    return polynomial<T>(c, x);
  }
}

/// Returns erfc(v) for v >= 0: t exp(P(x) - v^2). Its relative error is about (v^2 + 2) half ulp.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V erfc_nonnegative(V v) {
  const V t = T(2) / (v + T(2));
  const V p = erfc_polynomial<T>(V(t * T(1 / 0.475) - T(0.525 / 0.475)));
  return t * exp_nonpositive<T>(V(p - v * v));
}

/// Returns e with v / 2^e in [sqrt(1/2), sqrt(2)).
template <class T, class V>
PALIMPSEST_HOST_DEVICE auto exponent_of(V v) {
  using K = ExponentialConstants<T>;
  using Int = Vector<typename Bits<T>::type>;
  return ((Int)v - K::kSqrtHalfBits) >> K::kMantissa;
}

/// log(2^e (1 + f)); log(1 + f) = 2 atanh(s), s = f / (2 + f), summed as in fdlibm so that its leading term f
/// is exact.
template <class T, class V, class Int>
PALIMPSEST_HOST_DEVICE V log_of_parts(V f, Int e) {
  using K = ExponentialConstants<T>;
  const V exponent = (V)((Int)broadcast<V>(K::kShifter) + e) - K::kShifter;
  const V s = f / (f + T(2));
  const V s2 = s * s;
  V r = broadcast<V>(T(2) / (2 * K::kAtanhTerms + 1));
  for (int i = K::kAtanhTerms - 1; i >= 1; --i) r = r * s2 + T(2) / (2 * i + 1);
  const V half_square = f * f * T(0.5);
  const V tail = s * (half_square + r * s2) + exponent * K::kLn2Low;
  return exponent * K::kLn2High - ((half_square - tail) - f);
}

/// Returns log(1 + u) for -1 < u <= 0, within 2 ulp; lanes above 0 are arbitrary. NaN stays NaN.
///   1 + u = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); f = 2^-e u + (2^-e - 1) rounds once.
///   log(1 + f) = 2 atanh(s), s = f / (2 + f), summed as in fdlibm so that its leading term f is exact.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V log1p_nonpositive(V u) {
  using K = ExponentialConstants<T>;
  using Int = Vector<typename Bits<T>::type>;
  const Int e = exponent_of<T>(V(u + T(1)));
  const V scale = (V)((K::kBias - e) << K::kMantissa);
  return log_of_parts<T>(V(u * scale + (scale - T(1))), e);
}

/// Returns log(v) for normal v > 0 up to infinity, within 2 ulp. NaN stays NaN.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V log_positive(V v) {
  using K = ExponentialConstants<T>;
  const auto e = exponent_of<T>(v);
  const V fraction = (V)((decltype(e))v - (e << K::kMantissa));
  return v - v == V{} ? log_of_parts<T>(V(fraction - T(1)), e) : v;
}

}  // namespace cpu::PALIMPSEST_ISA_NAMESPACE

// NOLINTBEGIN(bugprone-macro-parentheses): the argument is a type.
#define PALIMPSEST_VECTOR_MATH(T)                                    \
  template <>                                                        \
  struct Math<cpu::PALIMPSEST_ISA_NAMESPACE::Vector<T>> {            \
    using V = cpu::PALIMPSEST_ISA_NAMESPACE::Vector<T>;              \
    PALIMPSEST_HOST_DEVICE static V exp(V v) {                       \
      return cpu::PALIMPSEST_ISA_NAMESPACE::exp_nonpositive<T>(v);   \
    }                                                                \
    PALIMPSEST_HOST_DEVICE static V expm1(V v) {                     \
      return cpu::PALIMPSEST_ISA_NAMESPACE::expm1_nonpositive<T>(v); \
    }                                                                \
    PALIMPSEST_HOST_DEVICE static V log(V v) {                       \
      return cpu::PALIMPSEST_ISA_NAMESPACE::log_positive<T>(v);      \
    }                                                                \
    PALIMPSEST_HOST_DEVICE static V log1p(V v) {                     \
      return cpu::PALIMPSEST_ISA_NAMESPACE::log1p_nonpositive<T>(v); \
    }                                                                \
    PALIMPSEST_HOST_DEVICE static V erfc(V v) {                      \
      return cpu::PALIMPSEST_ISA_NAMESPACE::erfc_nonnegative<T>(v);  \
    }                                                                \
    PALIMPSEST_HOST_DEVICE static V sqrt(V v) {                      \
      return cpu::PALIMPSEST_ISA_NAMESPACE::square_root<T>(v);       \
    }                                                                \
  };
PALIMPSEST_VECTOR_MATH(float)
PALIMPSEST_VECTOR_MATH(double)
#undef PALIMPSEST_VECTOR_MATH
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace palimpsest::kernels
