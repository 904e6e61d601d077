#pragma once

/// Marks the formulas that host and device share. Always inlined on the host: the CPU kernels are compiled
/// once per instruction set, and a shared out-of-line copy would be whichever one the linker met first.
#ifdef __CUDACC__
#define PALIMPSEST_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PALIMPSEST_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace palimpsest {

/// Activations that the fused layer can invert, so that it keeps its output only.
enum class Activation {
  kLeakyReLU,  ///< y >= 0 ? y : a*y; param a in (0, 1]: slope 0 loses the negative side
  kELU,        ///< y >= 0 ? y : a*(exp(y)-1); param a > 0
  kIdentity,   ///< y; no param
};

namespace kernels {

/// exp(v) - 1 and log(1 + v) for a type of values: float and double here, vectors of them in
/// cpu/vector_math.h.
template <class V>
struct Exponential;
template <>
struct Exponential<float> {
  PALIMPSEST_HOST_DEVICE static float expm1(float v) { return __builtin_expm1f(v); }
  PALIMPSEST_HOST_DEVICE static float log1p(float v) { return __builtin_log1pf(v); }
};
template <>
struct Exponential<double> {
  PALIMPSEST_HOST_DEVICE static double expm1(double v) { return __builtin_expm1(v); }
  PALIMPSEST_HOST_DEVICE static double log1p(double v) { return __builtin_log1p(v); }
};

// Each activation gives z = forward(y), y = inverse(z) and derivative(z) = dz/dy read off the output z (at
// exactly 0 the negative side's, as in libtorch). T is the type of the maths; V is T or a vector of T, for
// which `condition ? a : b` selects lane by lane. A NaN stays a NaN.

/// z = y >= 0 ? y : slope * y.
template <class T>
struct LeakyReLU {
  T slope;
  T inverse_slope;  ///< multiplied instead of divided by: half an ulp more, many cycles less

  PALIMPSEST_HOST_DEVICE explicit LeakyReLU(double a) : slope(T(a)), inverse_slope(T(1 / a)) {}

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
};

/// z = y >= 0 ? y : alpha * (exp(y) - 1).
template <class T>
struct ELU {
  T alpha;
  T inverse_alpha;
  T lowest;  ///< the smallest z / alpha whose logarithm is finite: deeper in saturation, y is gone and this
             ///< stands in

  PALIMPSEST_HOST_DEVICE explicit ELU(double a)
      : alpha(T(a)), inverse_alpha(T(1 / a)), lowest(sizeof(T) == 4 ? T(-1 + 0x1p-24) : T(-1 + 0x1p-53)) {}

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return y >= T(0) ? y : V(Exponential<V>::expm1(y) * alpha);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V inverse(V z) const {
    const V u = z * inverse_alpha;
    return z >= T(0) ? z : Exponential<V>::log1p(u < lowest ? (V{} + lowest) : u);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative(V z) const {
    return z > T(0) ? (V{} + T(1)) : V(z + alpha);
  }
};

/// z = y.
template <class T>
struct Identity {
  PALIMPSEST_HOST_DEVICE explicit Identity(double) {}

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
};

/// Calls `function(activation)` with the struct above that `kind` names, for maths in T.
template <class T, class Function>
PALIMPSEST_HOST_DEVICE void dispatch_activation(Activation kind, double param, const Function& function) {
  switch (kind) {
    case Activation::kLeakyReLU:
      return function(LeakyReLU<T>(param));
    case Activation::kELU:
      return function(ELU<T>(param));
    case Activation::kIdentity:
      return function(Identity<T>(param));
  }
}

}  // namespace kernels
}  // namespace palimpsest
