#pragma once

#include "palimpsest/kernels/activation.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace palimpsest::kernels {

/// Every activation under libtorch's name for it.
inline constexpr std::array<std::pair<Activation, std::string_view>, 11> kActivationNames{{
    {Activation::kLeakyReLU, "leaky_relu"},
    {Activation::kELU, "elu"},
    {Activation::kIdentity, "identity"},
    {Activation::kSigmoid, "sigmoid"},
    {Activation::kTanh, "tanh"},
    {Activation::kSoftplus, "softplus"},
    {Activation::kReLU, "relu"},
    {Activation::kGELU, "gelu"},
    {Activation::kGELUTanh, "gelu_tanh"},
    {Activation::kSiLU, "silu"},
    {Activation::kHardSwish, "hardswish"},
}};

constexpr std::string_view activation_name(Activation activation) {
  for (const auto& [known, name] : kActivationNames)
    if (known == activation) return name;
  return "unknown";
}

constexpr std::optional<Activation> find_activation(std::string_view wanted) {
  for (const auto& [activation, name] : kActivationNames)
    if (name == wanted) return activation;
  return std::nullopt;
}

}  // namespace palimpsest::kernels
