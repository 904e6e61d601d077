#pragma once

namespace palimpsest {

/// Activations that the fused layer can invert, so that it keeps its output only.
enum class Activation {
  kLeakyReLU,  ///< y >= 0 ? y : a*y; param a in (0, 1]: slope 0 loses the negative side
  kELU,        ///< y >= 0 ? y : a*(exp(y)-1); param a > 0
  kIdentity,   ///< y; no param
};

}  // namespace palimpsest
