#pragma once

#include "palimpsest/kernels/cuda/device/vector16.cuh"
#include "palimpsest/kernels/formulas/activation.h"
#include "palimpsest/kernels/formulas/branch_inverse.h"
#include "palimpsest/kernels/formulas/precision.h"

#include <algorithm>
#include <limits>

namespace palimpsest::kernels::cuda::abn_detail {

/// The activation of a list that `kind` names, constructed on the host. One kernel serves all activations:
/// every thread of a launch takes the same branch, and one branch per vector costs nothing next to the memory
/// accesses.
template <class List>
class ChosenActivation;

template <class... Acts>
class ChosenActivation<ActivationList<Acts...>> : private Acts... {
 public:
  ChosenActivation(Activation kind, const ActivationArguments& arguments) : Acts(arguments)..., kind_(kind) {}

  /// Calls function(activation) with the struct of formulas/activation.h.
  template <class Function>
  __device__ __forceinline__ void dispatch(const Function& function) const {
    static_cast<void>(((kind_ == Acts::kKind && (function(static_cast<const Acts&>(*this)), true)) || ...));
  }

 private:
  Activation kind_;
};

template <class T>
class AnyActivation : public ChosenActivation<AllActivations<T>> {
 public:
  static constexpr bool kLarge = true;      ///< its arithmetic takes many registers
  static constexpr bool kBranches = false;  ///< backward recovers y from z and a bit

  using ChosenActivation<AllActivations<T>>::ChosenActivation;
};

/// The activations with two branches, for which z and a bit determine y. Their arithmetic takes so many
/// registers that they need a kernel of their own.
template <class T>
class BranchActivation : public ChosenActivation<BranchedActivations<T>> {
 public:
  static constexpr bool kLarge = true;
  static constexpr bool kBranches = true;

  using ChosenActivation<BranchedActivations<T>>::ChosenActivation;
};

/// The activations that consist of two straight lines: leaky ReLU, the identity (slope 1) and ReLU (slope 0,
/// and 0 for -infinity). Their kernels take fewer registers, and so have more loads under way.
template <class T>
class StraightActivation {
 public:
  static constexpr bool kLarge = false;  ///< and kResidual kernels always have a residual
  static constexpr bool kBranches = false;

  static bool covers(Activation kind) {
    return kind == Activation::kLeakyReLU || kind == Activation::kIdentity || kind == Activation::kReLU;
  }

  StraightActivation(Activation kind, const ActivationArguments& arguments)
      : cuts_(kind == Activation::kReLU),
        slope_(static_cast<T>(kind == Activation::kLeakyReLU ? arguments.param
                              : cuts_                        ? 0
                                                             : 1)),
        inverse_slope_(kind == Activation::kLeakyReLU ? inverse_of(arguments.param) : T(1)) {}

  /// Calls function(activation). The functions of the activation are those in formulas/activation.h.
  template <class Function>
  __device__ __forceinline__ void dispatch(const Function& function) const {
    function(*this);
  }

  __device__ __forceinline__ T forward(T y) const {
    const T below = cuts_ ? T(0) : y * slope_;
    return y < T(0) ? below : y;
  }
  /// Calls function(forward) once, where forward(y) is the function above without its choice per value.
  template <class Function>
  __device__ __forceinline__ void with_forward(const Function& function) const {
    if (cuts_)
      function([](T y) { return y < T(0) ? T(0) : y; });
    else
      function([this](T y) { return y < T(0) ? y * slope_ : y; });
  }
  /// Compares as derivative() does, which saves an instruction per value; 0 times a finite number is 0.
  __device__ __forceinline__ T inverse(T z) const { return z > T(0) ? z : z * inverse_slope_; }
  __device__ __forceinline__ T derivative(T z) const { return z > T(0) ? T(1) : slope_; }
  __device__ __forceinline__ T derivative_at(T y) const { return derivative(y); }

 private:
  static T inverse_of(double slope) {
    return static_cast<T>(std::min(1 / slope, static_cast<double>(std::numeric_limits<T>::max())));
  }

  bool cuts_;
  T slope_, inverse_slope_;
};

}  // namespace palimpsest::kernels::cuda::abn_detail
