#include "palimpsest/amp/precision.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"

#include <array>
#include <utility>

namespace palimpsest::amp {
namespace {

constexpr std::array<std::pair<std::string_view, Precision>, 4> kPrecisions{{
    {"f32", Precision::kF32},
    {"bf16", Precision::kBF16},
    {"f16", Precision::kF16},
    {"f16-pseudo", Precision::kF16Pseudo},
}};

}  // namespace

Precision parse_precision(std::string_view wanted) {
  for (const auto& [name, precision] : kPrecisions)
    if (name == wanted) return precision;
  throw Error(ErrorKind::kUsage, unknown_name_message("precision", wanted, precision_names()));
}

std::string to_string(Precision wanted) {
  for (const auto& [name, precision] : kPrecisions)
    if (precision == wanted) return std::string(name);
  throw Error(ErrorKind::kInternal, "precision has no name: " + std::to_string(static_cast<int>(wanted)));
}

std::vector<std::string> precision_names() {
  std::vector<std::string> names;
  names.reserve(kPrecisions.size());
  for (const auto& [name, precision] : kPrecisions) names.emplace_back(name);
  return names;
}

PrecisionGuard::PrecisionGuard(c10::Device device, Precision precision) {
  if (precision == Precision::kF32) return;
  AutocastOptions options;
  options.cache = false;
  options.compute_in_f32 = precision == Precision::kF16Pseudo;
  guard_.emplace(device, precision == Precision::kBF16 ? at::kBFloat16 : at::kHalf, options);
}

}  // namespace palimpsest::amp
