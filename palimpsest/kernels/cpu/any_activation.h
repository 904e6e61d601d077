#pragma once

// As vector.h: only for units that are compiled once per instruction set.

#include "palimpsest/kernels/branch_inverse.h"
#include "palimpsest/kernels/cpu/abn_kernels.h"
#include "palimpsest/kernels/cpu/storage.h"
#include "palimpsest/kernels/cpu/sweep.h"
#include "palimpsest/kernels/cpu/vector_math.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {
namespace {

template <class S>
constexpr Precision precision_of() {
  if constexpr (__is_same(S, double)) return {0x1p-52, 0x1p-1022};
  if constexpr (__is_same(S, Float16)) return {0x1p-10, 0x1p-25};
  if constexpr (__is_same(S, BFloat16)) return {0x1p-7, 0x1p-126};
  return {0x1p-23, 0x1p-126};
}

// Out of line: eleven activations in every sweep would be a megabyte of code. A call a vector costs little
// beside an exponential.
template <class T, class V>
__attribute__((noinline)) V any_forward(Activation kind, ActivationArguments a, V y) {
  V z{};
  dispatch_activation<T>(kind, a, [&](auto act) PALIMPSEST_INLINE_LAMBDA { z = act.forward(y); });
  return z;
}

template <class T, class V>
__attribute__((noinline)) V any_inverse(Activation kind, ActivationArguments a, V z) {
  V y{};
  dispatch_activation<T>(kind, a, [&](auto act) PALIMPSEST_INLINE_LAMBDA {
    if constexpr (Invertible<decltype(act)>) y = act.inverse(z);
  });
  return y;
}

template <class T, class V>
__attribute__((noinline)) V any_derivative(Activation kind, ActivationArguments a, V z) {
  V d{};
  dispatch_activation<T>(kind, a, [&](auto act) PALIMPSEST_INLINE_LAMBDA {
    if constexpr (Invertible<decltype(act)>) d = act.derivative(z);
  });
  return d;
}

template <class T, class V>
__attribute__((noinline)) V any_derivative_at(Activation kind, ActivationArguments a, V y) {
  V d{};
  dispatch_activation<T>(kind, a, [&](auto act) PALIMPSEST_INLINE_LAMBDA { d = act.derivative_at(y); });
  return d;
}

template <class T, class V, class Mask>
__attribute__((noinline)) Recovered<V> any_recover(Activation kind, Precision precision, V z, Mask rising) {
  Recovered<V> result{};
  dispatch_activation<T>(kind, {0, precision}, [&]<class Act>(const Act& act) PALIMPSEST_INLINE_LAMBDA {
    if constexpr (InvertibleByBranch<Act>) result = recover<T>(act, precision, z, rising);
  });
  return result;
}

/// Whichever activation `kind` names, chosen at each call.
template <class T>
struct AnyActivation {
  Activation kind;
  ActivationArguments arguments;

  template <class V>
  PALIMPSEST_HOST_DEVICE V forward(V y) const {
    return any_forward<T>(kind, arguments, y);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V inverse(V z) const {
    return any_inverse<T>(kind, arguments, z);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative(V z) const {
    return any_derivative<T>(kind, arguments, z);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE V derivative_at(V y) const {
    return any_derivative_at<T>(kind, arguments, y);
  }
  template <class V, class Mask>
  PALIMPSEST_HOST_DEVICE Recovered<V> recover(V z, Mask rising) const {
    return any_recover<T>(kind, arguments.precision, z, rising);
  }
};

/// Calls function(activation, V{}) with the one that stands for all.
template <class S, class Function>
PALIMPSEST_HOST_DEVICE void with_any_activation(ActivationChoice choice, int64_t width,
                                                const Function& function) {
  using T = MathsOf<S>;
  const AnyActivation<T> activation{choice.kind, {choice.param, precision_of<S>()}};
  with_lanes<T>(width, [&](auto v) PALIMPSEST_INLINE_LAMBDA { function(activation, v); });
}

/// Calls function(activation, V{}): the straight-line activations over whole vectors have sweeps of their
/// own, all others and rows that are shorter than a vector share one. kNeedsInverse: ReLU is none of them.
template <class S, bool kNeedsInverse, class Function>
PALIMPSEST_HOST_DEVICE void with_activation(ActivationChoice choice, int64_t width,
                                            const Function& function) {
  using T = MathsOf<S>;
  const ActivationArguments a{choice.param, precision_of<S>()};
  if (width < lanes<T, Vector<T>>()) return with_any_activation<S>(choice, width, function);
  if (choice.kind == Activation::kLeakyReLU) return function(LeakyReLU<T>(a), Vector<T>{});
  if (choice.kind == Activation::kIdentity)
    return function(LeakyReLU<T>(ActivationArguments{1, a.precision}), Vector<T>{});
  if constexpr (!kNeedsInverse)
    if (choice.kind == Activation::kReLU) return function(ReLU<T>(a), Vector<T>{});
  with_any_activation<S>(choice, width, function);
}

/// A per-channel argument: one value for all of a plane, one a column else.
template <class T, class V, bool kPlane>
class PerChannel {
 public:
  PALIMPSEST_HOST_DEVICE explicit PerChannel(const T* values)
      : values_(values), plane_(kPlane ? broadcast<V>(*values) : V{}) {}

  PALIMPSEST_HOST_DEVICE V at(int64_t column) const {
    if constexpr (kPlane)
      return plane_;
    else
      return load<V>(values_ + column);
  }

 private:
  const T* values_;
  V plane_;
};

/// What is added to y at offset i.
template <class V, class S>
PALIMPSEST_HOST_DEVICE V residual_at(const Residual<S>& residual, int64_t i) {
  const V r = load_as<V>(residual.values + i);
  return residual.relu ? (r <= V{} ? V{} : r) : r;
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
