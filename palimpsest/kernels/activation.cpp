#include "palimpsest/kernels/activation.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace palimpsest::kernels {
namespace {

constexpr std::pair<Activation, std::string_view> kNames[] = {{Activation::kLeakyReLU, "leaky_relu"},
                                                              {Activation::kELU, "elu"},
                                                              {Activation::kIdentity, "identity"},
                                                              {Activation::kSigmoid, "sigmoid"},
                                                              {Activation::kTanh, "tanh"},
                                                              {Activation::kSoftplus, "softplus"},
                                                              {Activation::kReLU, "relu"},
                                                              {Activation::kGELU, "gelu"},
                                                              {Activation::kGELUTanh, "gelu_tanh"},
                                                              {Activation::kSiLU, "silu"},
                                                              {Activation::kHardSwish, "hardswish"}};

}  // namespace

std::string_view activation_name(Activation activation) {
  for (const auto& [known, name] : kNames)
    if (known == activation) return name;
  throw std::invalid_argument("activation must be one of the enumeration, got " +
                              std::to_string(static_cast<int>(activation)));
}

std::optional<Activation> find_activation(std::string_view wanted) {
  for (const auto& [activation, name] : kNames)
    if (name == wanted) return activation;
  return std::nullopt;
}

std::vector<std::string_view> activation_names() {
  std::vector<std::string_view> names;
  for (const auto& [activation, name] : kNames) names.push_back(name);
  return names;
}

}  // namespace palimpsest::kernels
