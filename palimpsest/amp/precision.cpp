#include "palimpsest/amp/precision.h"

#include "palimpsest/base/named_enum.h"

namespace palimpsest::amp {
namespace {

constexpr NamedEnum kPrecisions{"precision",
                                {EnumName{Precision::kF32, "f32"},
                                 {Precision::kBF16, "bf16"},
                                 {Precision::kF16, "f16"},
                                 {Precision::kF16Pseudo, "f16-pseudo"}}};

}  // namespace

Precision parse_precision(std::string_view name) {
  return kPrecisions.parse(name);
}

std::string to_string(Precision precision) {
  return std::string(kPrecisions.name(precision));
}

std::vector<std::string> precision_names() {
  return kPrecisions.names();
}

PrecisionGuard::PrecisionGuard(c10::Device device, Precision precision) {
  if (precision == Precision::kF32) return;
  AutocastOptions options;
  options.cache = false;
  options.compute_in_f32 = precision == Precision::kF16Pseudo;
  guard_.emplace(device, precision == Precision::kBF16 ? at::kBFloat16 : at::kHalf, options);
}

}  // namespace palimpsest::amp
