#include "palimpsest/ops/common/names.h"

#include "palimpsest/base/nearest_name.h"

#include <c10/util/Exception.h>

#include <iterator>
#include <string>
#include <vector>

namespace palimpsest::ops {

Activation activation_from_name(std::string_view name) {
  if (const auto activation = kernels::kActivations.find(name)) return *activation;
  TORCH_CHECK(false, "[abn] ", kernels::kActivations.unknown(name));
}

std::string_view activation_name(Activation activation) {
  return kernels::kActivations.name(activation);
}

kernels::Saved keep_from_name(std::string_view name) {
  for (const auto& [keep, known] : kKeepNames)
    if (known == name) return keep;
  std::vector<std::string> candidates;
  candidates.reserve(std::size(kKeepNames));
  for (const auto& [keep, known] : kKeepNames) candidates.emplace_back(known);
  TORCH_CHECK(false, "[abn] ", unknown_name_message("keep", name, candidates));
}

std::string_view keep_name(kernels::Saved keep) {
  for (const auto& [known, name] : kKeepNames)
    if (known == keep) return name;
  TORCH_INTERNAL_ASSERT(false, "keep without a name: ", static_cast<int>(keep));
}

}  // namespace palimpsest::ops
