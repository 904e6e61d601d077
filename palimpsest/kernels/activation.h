#pragma once

namespace palimpsest {

/// Activations of the fused layer, z = act(y). The first group can be inverted, y = act^-1(z), so that the
/// layer may keep its output z alone; the others lose y, and a layer with one of them keeps y, or (GELU and
/// SiLU) z and one bit an element.
enum class Activation {
  kLeakyReLU,  ///< y >= 0 ? y : a*y; param a in (0, 1]
  kELU,        ///< y >= 0 ? y : a*(exp(y)-1); param a > 0
  kIdentity,   ///< y
  kSigmoid,    ///< 1 / (1 + exp(-y))
  kTanh,       ///< tanh(y)
  kSoftplus,   ///< log(1 + exp(y)), everywhere: libtorch's goes over to y at y = 20, 2e-9 away

  kReLU,       ///< max(y, 0)
  kGELU,       ///< y * (1 + erf(y / sqrt(2))) / 2
  kGELUTanh,   ///< y * (1 + tanh(sqrt(2/pi) * (y + 0.044715 y^3))) / 2
  kSiLU,       ///< y / (1 + exp(-y))
  kHardSwish,  ///< y * clamp(y + 3, 0, 6) / 6
};

namespace kernels {

/// Whether y can be had from z alone.
constexpr bool is_invertible(Activation activation) {
  return activation <= Activation::kSoftplus;
}

/// Whether it takes z and one more bit: these fall to a minimum and then rise, and the bit says which.
constexpr bool has_branches(Activation activation) {
  return activation == Activation::kGELU || activation == Activation::kGELUTanh ||
         activation == Activation::kSiLU;
}

/// Whether activation_param means something: leaky ReLU's slope, ELU's alpha.
constexpr bool has_param(Activation activation) {
  return activation == Activation::kLeakyReLU || activation == Activation::kELU;
}

}  // namespace kernels
}  // namespace palimpsest
