#pragma once

#include "palimpsest/kernels/cuda/device/vector16.cuh"
#include "palimpsest/kernels/formulas/activation.h"
#include "palimpsest/kernels/formulas/precision.h"

namespace palimpsest::kernels::cuda {

/// Whichever activation `kind` names, made on the host. One kernel serves them all: the choice is the same
/// for a whole launch, and one branch a vector costs nothing beside the memory.
template <class T>
class AnyActivation {
 public:
  static constexpr bool kLarge = true;      ///< it takes many registers
  static constexpr bool kBranches = false;  ///< it is read back from z and a bit

  AnyActivation(Activation kind, const ActivationArguments& a)
      : kind_(kind),
        leaky_(a),
        elu_(a),
        identity_(a),
        sigmoid_(a),
        tanh_(a),
        softplus_(a),
        relu_(a),
        gelu_(a),
        gelu_tanh_(a),
        silu_(a),
        hard_swish_(a) {}

  /// Calls function(activation) with the struct of activation_formulas.h.
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

/// The activations with two branches, where z and a bit give y back: so many registers that a kernel of its
/// own has room for nothing else.
template <class T>
class BranchActivation {
 public:
  static constexpr bool kLarge = true;
  static constexpr bool kBranches = true;

  BranchActivation(Activation kind, const ActivationArguments& a)
      : kind_(kind), gelu_(a), gelu_tanh_(a), silu_(a) {}

  /// Calls function(activation) with the struct of activation_formulas.h.
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

/// The activations that are two straight lines, as one: leaky ReLU, the identity (of slope 1) and ReLU (of
/// slope 0, and 0 for -infinity, too). Kernels with fewer registers, which have more loads under way.
template <class T>
class StraightActivation {
 public:
  static constexpr bool kLarge = false;
  static constexpr bool kBranches = false;

  static bool covers(Activation kind) {
    return kind == Activation::kLeakyReLU || kind == Activation::kIdentity || kind == Activation::kReLU;
  }

  StraightActivation(Activation kind, const ActivationArguments& a)
      : cuts_(kind == Activation::kReLU),
        slope_(kind == Activation::kLeakyReLU ? static_cast<T>(a.param) : static_cast<T>(cuts_ ? 0 : 1)),
        inverse_slope_(kind == Activation::kLeakyReLU ? static_cast<T>(1 / a.param) : T(1)) {}

  /// Calls function(activation), which has the functions of those of activation_formulas.h.
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

}  // namespace palimpsest::kernels::cuda
