#pragma once

#include "palimpsest/base/host_device.h"
#include "palimpsest/kernels/activation.h"
#include "palimpsest/kernels/formulas/precision.h"

namespace palimpsest::kernels {

/// The normal distribution and its density at one value.
template <class V>
struct Normal {
  V distribution, density;
};

inline constexpr double kNormalDensityAtZero = 0.39894228040143267794;  // 1 / sqrt(2 pi)

/// Returns the normal distribution and its density at v. T: float or double.
template <class T>
PALIMPSEST_HOST_DEVICE Normal<T> normal(T v);

/// Elementary functions of float and double here, of vectors in cpu/simd/math.h. The vector forms take the
/// arguments that the formulas below need: exp and expm1 of v <= 0, log1p of -1 < v <= 0, log of v > 0; no erfc.
/// minus_abs: -|v|.
template <class V>
struct Math;
template <>
struct Math<float> {
  PALIMPSEST_HOST_DEVICE static float exp(float v) { return __builtin_expf(v); }
  PALIMPSEST_HOST_DEVICE static float expm1(float v) { return __builtin_expm1f(v); }
  PALIMPSEST_HOST_DEVICE static float log(float v) { return __builtin_logf(v); }
  PALIMPSEST_HOST_DEVICE static float log1p(float v) { return __builtin_log1pf(v); }
  PALIMPSEST_HOST_DEVICE static float erfc(float v) { return __builtin_erfcf(v); }
  PALIMPSEST_HOST_DEVICE static float minus_abs(float v) { return -__builtin_fabsf(v); }
  PALIMPSEST_HOST_DEVICE static Normal<float> normal(float v) { return kernels::normal(v); }
  PALIMPSEST_HOST_DEVICE static float sqrt(float v) { return __builtin_sqrtf(v); }
};
template <>
struct Math<double> {
  PALIMPSEST_HOST_DEVICE static double exp(double v) { return __builtin_exp(v); }
  PALIMPSEST_HOST_DEVICE static double expm1(double v) { return __builtin_expm1(v); }
  PALIMPSEST_HOST_DEVICE static double log(double v) { return __builtin_log(v); }
  PALIMPSEST_HOST_DEVICE static double log1p(double v) { return __builtin_log1p(v); }
  PALIMPSEST_HOST_DEVICE static double erfc(double v) { return __builtin_erfc(v); }
  PALIMPSEST_HOST_DEVICE static double minus_abs(double v) { return -__builtin_fabs(v); }
  PALIMPSEST_HOST_DEVICE static Normal<double> normal(double v) { return kernels::normal(v); }
  PALIMPSEST_HOST_DEVICE static double sqrt(double v) { return __builtin_sqrt(v); }
};

template <class T>
PALIMPSEST_HOST_DEVICE Normal<T> normal(T v) {
  const T tail = Math<T>::erfc(Math<T>::minus_abs(v) * T(-0.70710678118654752440)) * T(0.5);
  return {v < T(0) ? tail : T(1) - tail, Math<T>::exp(v * v * T(-0.5)) * T(kNormalDensityAtZero)};
}

/// The arguments of every activation's constructor. `precision`: of the type that z is stored in.
struct ActivationArguments {
  double param;
  Precision precision;
};

// Each activation has kKind, z = forward(y) and derivative_at(y) = dz/dy. Invertible ones also have
// y = inverse(z) and derivative(z) = dz/dy computed from the output (at exactly 0 that of the negative side,
// as in libtorch). Those with two branches have expansion(y) instead, from which branch_inverse.h finds y. T
// is the accumulate type; V is T or a vector of T, for which `condition ? a : b` selects lane by lane. A NaN
// stays a NaN.

/// An activation and its first three derivatives at one y.
template <class V>
struct Expansion {
  V value, first, second, third;
};

/// The polynomial with these coefficients, from the constant one up.
template <class T, class V, int kTerms>
PALIMPSEST_HOST_DEVICE V polynomial(const T (&coefficients)[kTerms], V x) {
  V p = V{} + coefficients[kTerms - 1];
  for (int i = kTerms - 2; i >= 0; --i) p = p * x + coefficients[i];
  return p;
}

/// z = y >= 0 ? y : slope * y.
template <class T>
struct LeakyReLU {
  static constexpr Activation kKind = Activation::kLeakyReLU;
  T slope;
  T inverse_slope;  ///< a product instead of a division: half an ulp more error, many cycles less

  PALIMPSEST_HOST_DEVICE explicit LeakyReLU(ActivationArguments a)
      : slope(T(a.param)), inverse_slope(T(1 / a.param)) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return y >= T(0) ? y : V(y * slope);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V inverse(V z) const {
    return z >= T(0) ? z : V(z * inverse_slope);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative(V z) const {
    return z > T(0) ? (V{} + T(1)) : (V{} + slope);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    return derivative(y);
  }
};

/// z = max(y, 0).
template <class T>
struct ReLU {
  static constexpr Activation kKind = Activation::kReLU;

  PALIMPSEST_HOST_DEVICE explicit ReLU(ActivationArguments) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return y <= T(0) ? V{} : y;
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    return y > T(0) ? (V{} + T(1)) : V{};
  }
};

/// z = min(max(y, 0), 6).
template <class T>
struct ReLU6 {
  static constexpr Activation kKind = Activation::kReLU6;

  PALIMPSEST_HOST_DEVICE explicit ReLU6(ActivationArguments) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    const V above = y <= T(0) ? V{} : y;
    return above > T(6) ? (V{} + T(6)) : above;
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    const V below = y < T(6) ? (V{} + T(1)) : V{};
    return y > T(0) ? below : V{};
  }
};

/// z = y >= 0 ? y : alpha * (exp(y) - 1).
template <class T>
struct ELU {
  static constexpr Activation kKind = Activation::kELU;
  T alpha;
  T inverse_alpha;
  T lowest;  ///< the smallest z / alpha whose logarithm is finite

  PALIMPSEST_HOST_DEVICE explicit ELU(ActivationArguments a)
      : alpha(T(a.param)), inverse_alpha(T(1 / a.param)), lowest(T(-1 + a.precision.epsilon / 2)) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return y >= T(0) ? y : V(Math<V>::expm1(y) * alpha);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V inverse(V z) const {
    const V u = z * inverse_alpha;
    return z >= T(0) ? z : Math<V>::log1p(u < lowest ? (V{} + lowest) : u);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative(V z) const {
    return z > T(0) ? (V{} + T(1)) : V(z + alpha);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    return y > T(0) ? (V{} + T(1)) : V(Math<V>::exp(y) * alpha);
  }
};

/// z = y.
template <class T>
struct Identity {
  static constexpr Activation kKind = Activation::kIdentity;

  PALIMPSEST_HOST_DEVICE explicit Identity(ActivationArguments) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return y;
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V inverse(V z) const {
    return z;
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative(V) const {
    return V{} + T(1);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V) const {
    return V{} + T(1);
  }
};

/// z = 1 / (1 + exp(-y)).
template <class T>
struct Sigmoid {
  static constexpr Activation kKind = Activation::kSigmoid;
  T smallest, largest;

  PALIMPSEST_HOST_DEVICE explicit Sigmoid(ActivationArguments a)
      : smallest(T(a.precision.smallest)), largest(T(1 - a.precision.epsilon / 2)) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE static V of(V y) {
    const V e = Math<V>::exp(Math<V>::minus_abs(y));
    return (y < T(0) ? e : (V{} + T(1))) / (e + T(1));
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE static Expansion<V> expansion(V y) {
    const V s = of(y), first = s * (T(1) - s);
    return {s, first, first * (T(1) - T(2) * s), first * (T(1) - T(6) * first)};
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return of(y);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V inverse(V z) const {
    const V below = z > largest ? (V{} + largest) : z;
    const V inside = below < smallest ? (V{} + smallest) : below;
    return Math<V>::log(inside / (T(1) - inside));
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative(V z) const {
    return z * (T(1) - z);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    const V e = Math<V>::exp(Math<V>::minus_abs(y)), inverse = T(1) / (e + T(1));
    return e * inverse * inverse;
  }
};

/// z = tanh(y).
template <class T>
struct Tanh {
  static constexpr Activation kKind = Activation::kTanh;
  T largest;

  PALIMPSEST_HOST_DEVICE explicit Tanh(ActivationArguments a) : largest(T(1 - a.precision.epsilon / 2)) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE static V of(V y) {
    const V e = Math<V>::expm1(Math<V>::minus_abs(y) * T(2));
    const V size = e / (e + T(2));  // not above 0
    return y < T(0) ? size : V(-size);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return of(y);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V inverse(V z) const {
    const V all = z < T(0) ? V(-z) : z;
    const V size = all > largest ? (V{} + largest) : all;
    const V y = Math<V>::log1p(T(-2) * size / (size + T(1))) * T(-0.5);
    return z < T(0) ? V(-y) : y;
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative(V z) const {
    return (T(1) - z) * (T(1) + z);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    const V e = Math<V>::exp(Math<V>::minus_abs(y) * T(2));
    return T(4) * e / ((e + T(1)) * (e + T(1)));
  }
};

/// z = log(1 + exp(y)).
template <class T>
struct Softplus {
  static constexpr Activation kKind = Activation::kSoftplus;
  T smallest;

  PALIMPSEST_HOST_DEVICE explicit Softplus(ActivationArguments a) : smallest(T(a.precision.smallest)) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    // log(1 + e) = -log(1 - e / (1 + e))
    const V e = Math<V>::exp(Math<V>::minus_abs(y));
    const V tail = -Math<V>::log1p(-e / (e + T(1)));
    return (y > T(0) ? y : (y <= T(0) ? V{} : y)) + tail;
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V inverse(V z) const {
    // log(exp(z) - 1) = z + log(1 - exp(-z))
    const V inside = z < smallest ? (V{} + smallest) : z;
    return inside + Math<V>::log(-Math<V>::expm1(-inside));
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative(V z) const {
    return -Math<V>::expm1(-z);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    return Sigmoid<T>::of(y);
  }
};

/// z = y * Phi(y), Phi the normal distribution: (1 + erf(y / sqrt(2))) / 2.
template <class T>
struct GELU {
  static constexpr Activation kKind = Activation::kGELU;

  PALIMPSEST_HOST_DEVICE explicit GELU(ActivationArguments) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return y * Math<V>::normal(y).distribution;
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    const Normal<V> at = Math<V>::normal(y);
    return at.distribution + y * at.density;
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE Expansion<V> expansion(V y) const {
    const Normal<V> at = Math<V>::normal(y);
    const V square = y * y;
    return {y * at.distribution, at.distribution + y * at.density, at.density * (T(2) - square),
            at.density * y * (square - T(4))};
  }
};

/// z = y * (1 + tanh(u)) / 2 = y * sigmoid(2 u), u = sqrt(2/pi) * (y + 0.044715 y^3).
template <class T>
struct GELUTanh {
  static constexpr Activation kKind = Activation::kGELUTanh;
  static constexpr double kTwiceScale = 1.5957691216057307117;  // 2 sqrt(2/pi)

  PALIMPSEST_HOST_DEVICE explicit GELUTanh(ActivationArguments) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE static V gate(V y) {
    return Sigmoid<T>::of(V(y * (y * y * T(kTwiceScale * 0.044715) + T(kTwiceScale))));
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return y * gate(y);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    const V s = gate(y), slope = y * y * T(3 * kTwiceScale * 0.044715) + T(kTwiceScale);
    return s + y * s * (T(1) - s) * slope;
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE Expansion<V> expansion(V y) const {
    const Expansion<V> s = Sigmoid<T>::expansion(V(y * (y * y * T(kTwiceScale * 0.044715) + T(kTwiceScale))));
    // The derivatives of the gate's argument, then those of the gate as a function of y.
    const V v1 = y * y * T(3 * kTwiceScale * 0.044715) + T(kTwiceScale),
            v2 = y * T(6 * kTwiceScale * 0.044715);
    const V g1 = s.first * v1, g2 = s.second * v1 * v1 + s.first * v2;
    const V g3 = s.third * v1 * v1 * v1 + T(3) * s.second * v1 * v2 + s.first * T(6 * kTwiceScale * 0.044715);
    return {y * s.value, s.value + y * g1, T(2) * g1 + y * g2, T(3) * g2 + y * g3};
  }
};

/// z = y / (1 + exp(-y)).
template <class T>
struct SiLU {
  static constexpr Activation kKind = Activation::kSiLU;

  PALIMPSEST_HOST_DEVICE explicit SiLU(ActivationArguments) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return y * Sigmoid<T>::of(y);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    const V s = Sigmoid<T>::of(y);
    return s * (T(1) + y * (T(1) - s));
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE Expansion<V> expansion(V y) const {
    const Expansion<V> s = Sigmoid<T>::expansion(y);
    return {y * s.value, s.value + y * s.first, T(2) * s.first + y * s.second, T(3) * s.second + y * s.third};
  }
};

/// z = y * clamp(y + 3, 0, 6) / 6.
template <class T>
struct HardSwish {
  static constexpr Activation kKind = Activation::kHardSwish;

  PALIMPSEST_HOST_DEVICE explicit HardSwish(ActivationArguments) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    const V above = y < T(-3) ? (V{} + T(-3)) : y;
    const V gate = above > T(3) ? (V{} + T(3)) : above;
    return y * (gate + T(3)) * T(1.0 / 6);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    const V inside = y * T(1.0 / 3) + T(0.5);
    return y <= T(-3) ? V{} : (y >= T(3) ? (V{} + T(1)) : inside);
  }
};

/// z = y * t, t = tanh(log(1 + exp(y))); dz/dy = t + y * r, r = sigmoid(y) * (1 - t^2). With e = exp(-|y|)
/// both are quotients of sums of positive terms, which lose no digits:
///   y < 0:  t = n / d, r = 4 e (1 + e) / d^2, n = e^2 + 2 e, d = n + 2
///   y >= 0: t = n / d, r = 4 e^2 (1 + e) / d^2, n = 2 e + 1, d = n + 2 e^2
template <class T>
struct Mish {
  static constexpr Activation kKind = Activation::kMish;
  static constexpr double kFar = 1000;  ///< e underflows there, and an infinite y would make a NaN of y * e

  PALIMPSEST_HOST_DEVICE explicit Mish(ActivationArguments) {}

  template <class V>
  struct Parts {
    V e, n, d;
  };
  template <class V>
  PALIMPSEST_HOST_DEVICE static Parts<V> parts(V y) {
    const V e = Math<V>::exp(Math<V>::minus_abs(y)), twice = e * T(2);
    const V n = y < T(0) ? V(e * e + twice) : V(twice + T(1));
    return {e, n, n + (y < T(0) ? (V{} + T(2)) : V(twice * e))};
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    const Parts<V> p = parts(y);
    return y < T(-kFar) ? V{} : V(y * (p.n / p.d));
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    const Parts<V> p = parts(y);
    const V inverse = T(1) / p.d;
    const V r = (y < T(0) ? p.e : V(p.e * p.e)) * (p.e + T(1)) * T(4) * inverse * inverse;
    return y < T(-kFar) ? V{} : V(p.n * inverse + (y > T(kFar) ? (V{} + T(kFar)) : y) * r);
  }
};

template <class... Acts>
struct ActivationList {};

/// Every activation, over T. The reference and the kernels of all devices take their activations from here.
template <class T>
using AllActivations =
    ActivationList<LeakyReLU<T>, ELU<T>, Identity<T>, Sigmoid<T>, Tanh<T>, Softplus<T>, ReLU<T>, ReLU6<T>,
                   GELU<T>, GELUTanh<T>, SiLU<T>, HardSwish<T>, Mish<T>>;

template <class... Acts, class Function>
PALIMPSEST_HOST_DEVICE void dispatch_in(ActivationList<Acts...>, Activation kind,
                                        const ActivationArguments& arguments, const Function& function) {
  // Compilers make a jump table of this chain of comparisons.
  static_cast<void>(((kind == Acts::kKind && (function(Acts(arguments)), true)) || ...));
}

/// Calls `function(activation)` with the struct above that `kind` names, over T.
template <class T, class Function>
PALIMPSEST_HOST_DEVICE void dispatch_activation(Activation kind, ActivationArguments arguments,
                                                const Function& function) {
  dispatch_in(AllActivations<T>{}, kind, arguments, function);
}

/// The activations whose output alone determines y.
template <class Act>
concept Invertible = requires(Act act) { act.inverse(0.0); };

/// Whether every value of Activation has one struct, which can be inverted if is_invertible says so.
template <class... Acts>
constexpr bool every_name_has_one_formula(ActivationList<Acts...>) {
  for (const auto& [activation, name, is_listed] : kActivations)
    if (is_listed && (0 + ... + (Acts::kKind == activation)) != 1) return false;
  return ((is_invertible(Acts::kKind) == Invertible<Acts>) && ...);
}
static_assert(every_name_has_one_formula(AllActivations<float>{}));

}  // namespace palimpsest::kernels
