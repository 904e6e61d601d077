#include "palimpsest/nn/misfit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

namespace palimpsest::nn {

bool Misfit::fits(const std::string& name, const at::Tensor& file, const at::Tensor& model, bool same_type) {
  if (file.sizes() != model.sizes()) {
    differing.push_back(fmt::format("{} is ({}) in the file, ({}) in the model", name,
                                    fmt::join(file.sizes(), ", "), fmt::join(model.sizes(), ", ")));
  } else if (same_type && file.scalar_type() != model.scalar_type()) {
    differing.push_back(fmt::format("{} is {} in the file, {} in the model", name,
                                    c10::toString(file.scalar_type()), c10::toString(model.scalar_type())));
  } else {
    return true;
  }
  return false;
}

std::string Misfit::text() const {
  constexpr std::size_t kShown = 3;
  std::vector<std::string> parts;
  const auto tell = [&](const std::vector<std::string>& keys, const std::string& what) {
    if (keys.empty()) return;
    const std::vector<std::string> first(
        keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, keys.size())));
    parts.push_back(fmt::format("{} {} ({}{})", keys.size(), what, fmt::join(first, ", "),
                                keys.size() > kShown ? ", ..." : ""));
  };
  tell(missing, missing.size() == 1 ? "missing key" : "missing keys");
  tell(unexpected, unexpected.size() == 1 ? "unexpected key" : "unexpected keys");
  tell(differing, "of another shape or type");
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace palimpsest::nn
