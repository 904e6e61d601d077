#pragma once

#include "palimpsest/base/named_enum.h"

namespace palimpsest {

/// Activations of the fused layer, z = act(y). The activations of the first group are invertible,
/// y = act^-1(z), so the output z is enough for backward. The second group loses y: the layer then saves a
/// tensor from before the activation, or, if has_branches, z and one bit per element.
enum class Activation {
  kLeakyReLU,  ///< y >= 0 ? y : a*y; param a in [0, 1]
  kELU,        ///< y >= 0 ? y : a*(exp(y)-1); param a >= 0
  kIdentity,   ///< y
  kSigmoid,    ///< 1 / (1 + exp(-y))
  kTanh,       ///< tanh(y)
  kSoftplus,   ///< log(1 + exp(y)) for every y; libtorch's is y above 20, a difference of 2e-9

  kReLU,       ///< max(y, 0)
  kReLU6,      ///< min(max(y, 0), 6)
  kGELU,       ///< y * (1 + erf(y / sqrt(2))) / 2
  kGELUTanh,   ///< y * (1 + tanh(sqrt(2/pi) * (y + 0.044715 y^3))) / 2
  kSiLU,       ///< y / (1 + exp(-y))
  kHardSwish,  ///< y * clamp(y + 3, 0, 6) / 6
  kMish,       ///< y * tanh(log(1 + exp(y)))
};

namespace kernels {

/// Returns whether z alone determines y.
constexpr bool is_invertible(Activation activation) {
  return activation <= Activation::kSoftplus;
}

/// Returns whether z and one bit determine y: the activation falls to a minimum and then rises, and the bit
/// names the branch.
constexpr bool has_branches(Activation activation) {
  return activation == Activation::kGELU || activation == Activation::kGELUTanh ||
         activation == Activation::kSiLU;
}

/// The activations by libtorch's names.
inline constexpr NamedEnum kActivations{"activation",
                                        {EnumName{Activation::kLeakyReLU, "leaky_relu"},
                                         {Activation::kELU, "elu"},
                                         {Activation::kIdentity, "identity"},
                                         {Activation::kSigmoid, "sigmoid"},
                                         {Activation::kTanh, "tanh"},
                                         {Activation::kSoftplus, "softplus"},
                                         {Activation::kReLU, "relu"},
                                         {Activation::kReLU6, "relu6"},
                                         {Activation::kGELU, "gelu"},
                                         {Activation::kGELUTanh, "gelu_tanh"},
                                         {Activation::kSiLU, "silu"},
                                         {Activation::kHardSwish, "hardswish"},
                                         {Activation::kMish, "mish"}}};

}  // namespace kernels
}  // namespace palimpsest
