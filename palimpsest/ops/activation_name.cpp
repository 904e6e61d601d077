#include "palimpsest/ops/activation_name.h"

#include "palimpsest/base/nearest_name.h"

#include <c10/util/Exception.h>

#include <array>
#include <string>
#include <utility>

namespace palimpsest::ops {
namespace {

constexpr std::array<std::pair<std::string_view, Activation>, 3> kNames{
    {{"leaky_relu", Activation::kLeakyReLU}, {"elu", Activation::kELU}, {"identity", Activation::kIdentity}}};

}  // namespace

Activation activation_from_name(std::string_view name) {
  for (const auto& [known, activation] : kNames)
    if (known == name) return activation;
  TORCH_CHECK(name != "relu",
              "[abn] activation must be invertible, got 'relu', whose zeros lose x; use 'leaky_relu' ",
              "with a small slope, or a batch norm and a ReLU of their own");
  std::array<std::string, kNames.size()> candidates;
  for (size_t i = 0; i < kNames.size(); ++i) candidates[i] = kNames[i].first;
  TORCH_CHECK(false, "[abn] ", unknown_name_message("activation", name, candidates));
}

std::string_view activation_name(Activation activation) {
  for (const auto& [name, known] : kNames)
    if (known == activation) return name;
  TORCH_INTERNAL_ASSERT(false, "activation without a name: ", static_cast<int>(activation));
}

}  // namespace palimpsest::ops
