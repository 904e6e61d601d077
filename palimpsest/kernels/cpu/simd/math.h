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

/// Returns 2^k, a normal number; k: the low bits of `shifted`.
template <class T, class V, class Int>
PALIMPSEST_HOST_DEVICE V power_of_two(Int shifted) {
  using K = ExponentialConstants<T>;
  using Lane = typename Bits<T>::unsigned_type;  // lanes whose result is arbitrary may overflow
  return (V)(((Vector<Lane>)shifted << K::kMantissa) + (Lane(K::kBias) << K::kMantissa));
}

/// (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2: a Chebyshev fit, within 2e-8 of exp(r) - 1 for f32 and 4e-17 for f64.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V expm1_rest(V r) {
  // Local, as all tables here: a member would be a symbol that every instruction set shares.
  if constexpr (sizeof(T) == sizeof(float)) {
    constexpr T c[] = {0.5f, 0.16666577f, 0.0416665546f, 0.00836318503f, 0.00139261911f};
    return polynomial<T>(c, r);
  } else {
    constexpr T c[] = {0.50000000000000010231,   0.16666666666666667454,   0.04166666666662409382,
                       0.0083333333333300592137, 0.0013888888917230723233, 0.00019841269863066695027,
                       2.4801521269532121095e-5, 2.7557268439678002354e-6, 2.7620101012098000228e-7,
                       2.5100395159429244017e-8};
    return polynomial<T>(c, r);
  }
}

/// Returns exp(r) - 1 for |r| <= ln(2) / 2.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V expm1_polynomial(V r) {
  return r + r * r * expm1_rest<T>(r);
}

/// Returns exp(r) for |r| <= ln(2) / 2.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V exp_polynomial(V r) {
  return (expm1_rest<T>(r) * r + T(1)) * r + T(1);
}

/// Returns exp(v) - 1 for v <= 0, within 2 ulp; lanes above 0 are arbitrary. NaN stays NaN.
///   exp(v) - 1 = 2^k (exp(r) - 1) + (2^k - 1): the last term is exact.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V expm1_nonpositive(V v) {
  using K = ExponentialConstants<T>;
  const auto reduced = reduce_by_ln2<T>(maximum(broadcast<V>(K::kSaturated), v));
  const V power = power_of_two<T, V>(reduced.shifted);
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

/// Returns exp(v) for v <= 0, within 2 ulp if the result is normal; lanes above 0 are arbitrary. NaN stays NaN.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V exp_nonpositive(V v) {
  using K = ExponentialConstants<T>;
  const auto reduced = reduce_by_ln2<T>(maximum(broadcast<V>(K::kExpUnderflow), v));
  const V fraction = exp_polynomial<T>(reduced.r);
#ifdef __AVX512F__
  if constexpr (sizeof(V) == 64) return times_power_of_two<T>(fraction, reduced.k);
#endif
  // 2^k in two factors: a single one could not be subnormal.
  using Int = Vector<typename Bits<T>::type>;
  const V high = maximum(broadcast<V>(K::kLowestExponent), reduced.k);
  return fraction * power_of_two<T, V>((Int)(high + K::kShifter)) *
         power_of_two<T, V>((Int)((reduced.k - high) + K::kShifter));
}

/// Returns exp(v) for v <= 0, within 2 ulp, or 0 where it would be subnormal or nearly so: an Intel Xeon takes over
/// 200 cycles for a vector with a result that underflows. 1 in lanes above 0. NaN stays NaN.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V exp_or_zero(V v) {
  using K = ExponentialConstants<T>;
  V normal = T(0) < v ? V{} : v;
  normal = normal < K::kNormalExp ? broadcast<V>(K::kNormalExp) : normal;
  const auto reduced = reduce_by_ln2<T>(normal);
  const V e = exp_polynomial<T>(reduced.r) * power_of_two<T, V>(reduced.shifted);
  return v < K::kNormalExp ? V{} : e;
}

inline constexpr double kTailScale = 0.3;  ///< with it ten terms are enough for f32

/// (1 - distribution) / (t exp(-v^2 / 2)), t = 1 / (1 + kTailScale v): a Chebyshev fit for v >= 0, within 8e-9 for f32
/// and 4e-17 for f64, up to where exp(-v^2 / 2) underflows.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V tail_polynomial(V t) {
  if constexpr (sizeof(T) == sizeof(float)) {
    constexpr T c[] = {0.119687569f,   0.119554415f, 0.110381232f, 0.0777088497f, 0.098113771f,
                       -0.0830259111f, 0.196045243f, -0.23134567f, 0.113738048f,  -0.0208575485f};
    return polynomial<T>(c, t);
  } else {
    // The variable of the fit lies in [-1, 1]: without that, cancellation would cost f64 digits.
    constexpr T c[] = {0.23041944276883295246,      0.16477130822530972903,    0.081890925273148648681,
                       0.02405950263921113051,      0.00096995755285493273612, -0.0019972116721164312623,
                       -0.00034593070724515295796,  0.00022002580402060510619, 0.000044265823016136413806,
                       -0.000033930451764822778932, -3.14926123619717003e-6,   5.9527770308390457838e-6,
                       -5.8496363774246265865e-7,   -9.290009366287840296e-7,  3.4877563593497240053e-7,
                       7.8828801505553095033e-8,    -9.6499110193457703781e-8, 1.6106029218634073923e-8,
                       1.6713131472093784535e-8,    -9.0833804108183414348e-9, -1.4697670185706627221e-9,
                       2.0178329284321729369e-9,    5.2849311376125018799e-12, -2.0094637631702915993e-10};
    return polynomial<T>(c, V(t * T(1 / 0.475) - T(0.525 / 0.475)));
  }
}

/// The normal distribution and its density. The error of both tails is at most (v^2 + 7) half ulp.
template <class T, class V>
PALIMPSEST_HOST_DEVICE Normal<V> normal(V v) {
  const V e = exp_nonpositive<T>(V(v * v * T(-0.5)));
  const V t = T(1) / (T(1) - T(kTailScale) * minus_abs<T>(v));
  const V tail = t * tail_polynomial<T>(t) * e;
  return {v < T(0) ? tail : V(T(1) - tail), e * T(kNormalDensityAtZero)};
}

/// Returns e with v / 2^e in [sqrt(1/2), sqrt(2)).
template <class T, class V>
PALIMPSEST_HOST_DEVICE auto exponent_of(V v) {
  using K = ExponentialConstants<T>;
  using Int = Vector<typename Bits<T>::type>;
  return ((Int)v - K::kSqrtHalfBits) >> K::kMantissa;
}

/// Returns log(2^e (1 + f)) for 1 + f in [sqrt(1/2), sqrt(2)). Its leading term f is exact.
template <class T, class V, class Int>
PALIMPSEST_HOST_DEVICE V log_of_parts(V f, Int e) {
  using K = ExponentialConstants<T>;
  const V exponent = (V)((Int)broadcast<V>(K::kShifter) + e) - K::kShifter;
  const V square = f * f, half_square = square * T(0.5);
  V rest;  // log(1 + f) - f + f^2 / 2
  if constexpr (sizeof(T) == sizeof(float)) {
    // A Chebyshev fit, within 2e-8 of log(1 + f): less time than a division.
    constexpr T c[] = {0.333333307f, -0.250003064f, 0.200010451f, -0.166412815f,
                       0.142144959f, -0.129981838f, 0.126223198f, -0.0790274377f};
    rest = square * f * polynomial<T>(c, f);
  } else {
    // log(1 + f) = 2 atanh(s), s = f / (2 + f), summed as in fdlibm.
    constexpr int kTerms = 10;
    const V s = f / (f + T(2)), s2 = s * s;
    V r = broadcast<V>(T(2) / (2 * kTerms + 1));
    for (int i = kTerms - 1; i >= 1; --i) r = r * s2 + T(2) / (2 * i + 1);
    rest = s * (half_square + r * s2);
  }
  return exponent * K::kLn2High - ((half_square - (rest + exponent * K::kLn2Low)) - f);
}

/// Returns log(1 + u) for -1 < u <= 0, within 2 ulp; lanes above 0 are arbitrary. NaN stays NaN.
///   1 + u = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); f = 2^-e u + (2^-e - 1) rounds once.
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
    PALIMPSEST_HOST_DEVICE static V minus_abs(V v) {                 \
      return cpu::PALIMPSEST_ISA_NAMESPACE::minus_abs<T>(v);         \
    }                                                                \
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
    PALIMPSEST_HOST_DEVICE static Normal<V> normal(V v) {            \
      return cpu::PALIMPSEST_ISA_NAMESPACE::normal<T>(v);            \
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
