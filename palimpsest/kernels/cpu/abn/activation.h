#pragma once

// Only for units of one instruction set, as simd/vector.h.

#include "palimpsest/kernels/cpu/abn/arguments.h"
#include "palimpsest/kernels/cpu/abn/table.h"
#include "palimpsest/kernels/cpu/simd/loops.h"
#include "palimpsest/kernels/cpu/simd/math.h"
#include "palimpsest/kernels/cpu/simd/storage.h"
#include "palimpsest/kernels/formulas/branch_inverse.h"
#include "palimpsest/kernels/formulas/precision.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn {

using cpu::abn::ActivationChoice;
using cpu::abn::ApplyCoefficients;
using cpu::abn::ApplyTensors;
using cpu::abn::BackwardCoefficients;
using cpu::abn::BackwardOutputs;
using cpu::abn::GradientTensors;
using cpu::abn::Kernels;
using cpu::abn::Residual;

namespace {

// Out of line: all activations in every sweep would be a megabyte of code. InlineActivations says what a call costs.
// Arguments by reference: by value, gcc stores a part of them and then loads the whole, which has to wait for the
// store, at each call (ELU: 1.4 times the time).
template <class T, class V>
__attribute__((noinline)) V any_forward(Activation kind, const ActivationArguments& arguments, V y) {
  V z{};
  dispatch_activation<T>(kind, arguments, [&](auto act) PALIMPSEST_INLINE_LAMBDA { z = act.forward(y); });
  return z;
}

template <class T, class V>
__attribute__((noinline)) V any_derivative_at(Activation kind, const ActivationArguments& arguments, V y) {
  V d{};
  dispatch_activation<T>(kind, arguments,
                         [&](auto act) PALIMPSEST_INLINE_LAMBDA { d = act.derivative_at(y); });
  return d;
}

template <class T, class V, class Mask>
__attribute__((noinline)) Recovered<V> any_recover(Activation kind, const ActivationArguments& arguments, V z,
                                                   Mask rising) {
  Recovered<V> result{};
  dispatch_activation<T>(kind, arguments, [&]<class Act>(const Act& act) PALIMPSEST_INLINE_LAMBDA {
    if constexpr (Invertible<Act>)
      result = {act.inverse(z), act.derivative(z)};
    else if constexpr (InvertibleByBranch<Act>)
      result = recover<T>(act, arguments.precision, z, rising);
  });
  return result;
}

/// The activation that `kind` names, chosen at each call.
template <class T>
struct AnyActivation {
  Activation kind;
  ActivationArguments arguments;

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return any_forward<T>(kind, arguments, y);
  }
  /// y and dz/dy, from v = y if is_before_activation(saved), else from v = z; `rising` is read for
  /// kOutputBit.
  template <class V, class Mask>
  PALIMPSEST_HOST_DEVICE Recovered<V> recover(Saved saved, V v, Mask rising) const {
    if (is_before_activation(saved)) return {v, any_derivative_at<T>(kind, arguments, v)};
    return any_recover<T>(kind, arguments, v, rising);
  }
};

/// The activations that are two straight lines, in one formula: leaky ReLU, whose slope is at most 1, the identity
/// (slope 1), and ReLU, which maps -infinity to 0. For whole vectors only.
template <class T>
struct StraightActivation {
  T slope, inverse_slope;
  T zero;  ///< added to z: 0 for ReLU, which makes 0 of -0; else -0, which changes nothing
  typename Bits<T>::type unless_relu;  ///< all bits; none for ReLU

  // z is the larger of both lines, y the smaller of their inverses. A NaN stays, as the second operand.
  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return maximum(product_if<T>(unless_relu, y, slope), y) + zero;
  }
  /// Recovered, with the product that depends on v alone.
  template <class V>
  struct OnLine {
    V y, v;
    T slope;

    PALIMPSEST_HOST_DEVICE V dy(V dz) const { return times_unless_above_zero<T>(v, dz, slope); }
  };
  template <class V, class Mask>
  PALIMPSEST_HOST_DEVICE OnLine<V> recover(Saved saved, V v, Mask) const {
    return {is_before_activation(saved) ? v : inverse(v), v, slope};
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V inverse(V z) const {
    return minimum(V(z * inverse_slope), z);
  }

  /// factor * dz/dy, and factor * dy/dz. A factor that is the same for all vectors is multiplied once.
  template <class V>
  PALIMPSEST_HOST_DEVICE V times_slope(V z, V factor) const {
    return times_unless_above_zero<T>(z, factor, slope);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V over_slope(V z, V factor) const {
    return times_unless_above_zero<T>(z, factor, inverse_slope);
  }
};

/// Leaky ReLU and the identity alone, for sweeps that only write z: half the instructions of StraightActivation.
template <class T>
struct LeakyActivation {
  T slope;

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return maximum(V(y * slope), y);
  }
};

template <class T>
PALIMPSEST_HOST_DEVICE StraightActivation<T> straight(ActivationChoice choice) {
  const bool relu = choice.kind == Activation::kReLU;
  const double slope = choice.kind == Activation::kLeakyReLU ? choice.param : (relu ? 0 : 1);
  return {T(slope), relu ? T(0) : T(1 / slope), relu ? T(0) : T(-0.0), relu ? 0 : -1};
}

/// One activation, inlined, for sweeps that a call per vector would slow down. Backward reads the output if that
/// determines y, else y.
template <class Act>
struct InlineActivation {
  static constexpr Saved kSaved = Invertible<Act> ? Saved::kOutput : Saved::kPreActivation;
  Act act;

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return act.forward(y);
  }
  template <class V, class Mask>
  PALIMPSEST_HOST_DEVICE Recovered<V> recover(Saved, V v, Mask) const {
    if constexpr (Invertible<Act>)
      return {act.inverse(v), act.derivative(v)};
    else
      return {v, act.derivative_at(v)};
  }
};

/// The activations that InlineActivation is compiled for: those of usual networks, but for the straight ones. With a
/// call per vector the backward pass of ReLU6, HardSwish and the sigmoid takes twice the time, on a Zen 3 with AVX2.
template <class T>
using InlineActivations =
    ActivationList<ELU<T>, Sigmoid<T>, Tanh<T>, ReLU6<T>, GELU<T>, SiLU<T>, HardSwish<T>>;

/// Returns function(activation) with an InlineActivation, if sweeps over rows of `width` values have one for `choice`.
/// Else returns false. It does so for every f64: f64 is rare, and each copy of a sweep takes time to compile.
template <class S, class Function>
PALIMPSEST_HOST_DEVICE bool with_inline_activation(ActivationChoice choice, int64_t width,
                                                   const Function& function) {
  using T = accumulate_t<S>;
  bool result = false;
  if constexpr (sizeof(T) == sizeof(float))
    if (width >= lanes<T, Vector<T>>())
      dispatch_in(InlineActivations<T>{}, choice.kind, {choice.param, precision_of<S>()},
                  [&]<class Act>(const Act& act)
                      PALIMPSEST_INLINE_LAMBDA { result = function(InlineActivation<Act>{act}); });
  return result;
}

/// Returns whether sweeps over rows of `width` values use StraightActivation.
template <class S>
PALIMPSEST_HOST_DEVICE bool is_straight(ActivationChoice choice, int64_t width) {
  using T = accumulate_t<S>;
  return width >= lanes<T, Vector<T>>() &&
         (choice.kind == Activation::kLeakyReLU || choice.kind == Activation::kIdentity ||
          choice.kind == Activation::kReLU);
}

/// The general form, for every activation.
template <class S>
PALIMPSEST_HOST_DEVICE AnyActivation<accumulate_t<S>> any(ActivationChoice choice) {
  return {choice.kind, {choice.param, precision_of<S>()}};
}

/// (v - center) * scale + shift. In 16 bits v * scale + shift, whose shift holds the center, too (uncentered_shift).
template <class S, class V, bool kPlane>
class Affine {
  using T = accumulate_t<S>;

 public:
  PALIMPSEST_HOST_DEVICE Affine(Argument<S, kPlane> center, Argument<S, kPlane> scale,
                                Argument<S, kPlane> shift)
      : center_(center), scale_(scale), shift_(shift) {}

  template <class Where>
  PALIMPSEST_HOST_DEVICE V at(V v, Where place) const {
    return (kIs16Bit<S> ? v : v - center(place)) * scale(place) + shift_.at(place);
  }
  template <class Where>
  PALIMPSEST_HOST_DEVICE V center(Where place) const {
    return center_.at(place);
  }
  template <class Where>
  PALIMPSEST_HOST_DEVICE V scale(Where place) const {
    return scale_.at(place);
  }

 private:
  PerChannel<T, V, kPlane> center_, scale_, shift_;
};

/// The residual's part of y.
template <class V, class S, class Where>
PALIMPSEST_HOST_DEVICE V residual_at(const Residual<S>& residual, Where place) {
  const V r = load_at<V>(residual.values, place);
  return residual.relu ? (r <= V{} ? V{} : r) : r;
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn
