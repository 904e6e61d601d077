#pragma once

#include "palimpsest/kernels/cuda/device/vector16.cuh"
#include "palimpsest/kernels/formulas/activation.h"
#include "palimpsest/kernels/formulas/precision.h"

namespace palimpsest::kernels::cuda::abn_detail {

/// The activation that `kind` names, constructed on the host. One kernel serves all activations: every thread
/// of a launch takes the same branch, and one branch per vector costs nothing next to the memory accesses.
template <class T>
class AnyActivation {
 public:
  static constexpr bool kLarge = true;      ///< its arithmetic takes many registers
  static constexpr bool kBranches = false;  ///< backward recovers y from z and a bit

  AnyActivation(Activation kind, const ActivationArguments& arguments)
      : kind_(kind),
        leaky_(arguments),
        elu_(arguments),
        identity_(arguments),
        sigmoid_(arguments),
        tanh_(arguments),
        softplus_(arguments),
        relu_(arguments),
        gelu_(arguments),
        gelu_tanh_(arguments),
        silu_(arguments),
        hard_swish_(arguments) {}

  /// Calls function(activation) with the struct of formulas/activation.h.
  template <class Function>
  __device__ __forceinline__ void dispatch(const Function& function) const {
    switch (kind_) {
      case Activation::kLeakyReLU:
        return function(leaky_);
      case Activation::kELU:
        return function(elu_);
      case Activation::kIdentity:
        return function(identity_);
      case Activation::kSigmoid:
        return function(sigmoid_);
      case Activation::kTanh:
        return function(tanh_);
      case Activation::kSoftplus:
        return function(softplus_);
      case Activation::kReLU:
        return function(relu_);
      case Activation::kGELU:
        return function(gelu_);
      case Activation::kGELUTanh:
        return function(gelu_tanh_);
      case Activation::kSiLU:
        return function(silu_);
      case Activation::kHardSwish:
        return function(hard_swish_);
    }
  }

 private:
  Activation kind_;
  LeakyReLU<T> leaky_;
  ELU<T> elu_;
  Identity<T> identity_;
  Sigmoid<T> sigmoid_;
  Tanh<T> tanh_;
  Softplus<T> softplus_;
  ReLU<T> relu_;
  GELU<T> gelu_;
  GELUTanh<T> gelu_tanh_;
  SiLU<T> silu_;
  HardSwish<T> hard_swish_;
};

/// The activations with two branches, for which z and a bit determine y. Their arithmetic takes so many
/// registers that they need a kernel of their own.
template <class T>
class BranchActivation {
 public:
  static constexpr bool kLarge = true;
  static constexpr bool kBranches = true;

  BranchActivation(Activation kind, const ActivationArguments& arguments)
      : kind_(kind), gelu_(arguments), gelu_tanh_(arguments), silu_(arguments) {}

  /// Calls function(activation) with the struct of formulas/activation.h.
  template <class Function>
  __device__ __forceinline__ void dispatch(const Function& function) const {
    if (kind_ == Activation::kGELU) return function(gelu_);
    if (kind_ == Activation::kGELUTanh) return function(gelu_tanh_);
    function(silu_);
  }

 private:
  Activation kind_;
  GELU<T> gelu_;
  GELUTanh<T> gelu_tanh_;
  SiLU<T> silu_;
};

/// The activations that consist of two straight lines: leaky ReLU, the identity (slope 1) and ReLU (slope 0,
/// and 0 for -infinity). Their kernels take fewer registers, and so have more loads under way.
template <class T>
class StraightActivation {
 public:
  static constexpr bool kLarge = false;
  static constexpr bool kBranches = false;

  static bool covers(Activation kind) {
    return kind == Activation::kLeakyReLU || kind == Activation::kIdentity || kind == Activation::kReLU;
  }

  StraightActivation(Activation kind, const ActivationArguments& arguments)
      : cuts_(kind == Activation::kReLU),
        slope_(static_cast<T>(kind == Activation::kLeakyReLU ? arguments.param
                              : cuts_                        ? 0
                                                             : 1)),
        inverse_slope_(kind == Activation::kLeakyReLU ? static_cast<T>(1 / arguments.param) : T(1)) {}

  /// Calls function(activation). The functions of the activation are those in formulas/activation.h.
  template <class Function>
  __device__ __forceinline__ void dispatch(const Function& function) const {
    function(*this);
  }

  __device__ __forceinline__ T forward(T y) const {
    const T below = cuts_ ? T(0) : y * slope_;
    return y < T(0) ? below : y;
  }
  __device__ __forceinline__ T inverse(T z) const { return z >= T(0) ? z : z * inverse_slope_; }
  __device__ __forceinline__ T derivative(T z) const { return z > T(0) ? T(1) : slope_; }
  __device__ __forceinline__ T derivative_at(T y) const { return derivative(y); }

 private:
  bool cuts_;
  T slope_, inverse_slope_;
};

}  // namespace palimpsest::kernels::cuda::abn_detail
