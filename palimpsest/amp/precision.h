#pragma once

#include "palimpsest/amp/autocast_guard.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::amp {

/// The types that a network computes in. Its parameters are f32 (or f64) in each case.
///   f32         the type of the parameters: no autocast
///   bf16        16-bit storage and arithmetic with the exponents of f32; needs no loss scale
///   f16         IEEE half precision. Gradients below 2^-24 are lost and those above 65504 overflow, so it
///               needs a loss scale (amp/grad_scaler.h)
///   f16-pseudo  storage in f16, arithmetic in f32
enum class Precision { kF32, kBF16, kF16, kF16Pseudo };

/// Returns the precision with one of the names above. Throws Error(kUsage) with the nearest name for any
/// other.
Precision parse_precision(std::string_view name);
std::string to_string(Precision precision);
std::vector<std::string> precision_names();

/// Returns whether gradients of this precision need a loss scale.
constexpr bool needs_loss_scale(Precision precision) {
  return precision == Precision::kF16 || precision == Precision::kF16Pseudo;
}

/// An AutocastGuard for `precision`, without a cache; does nothing for f32.
class PrecisionGuard {
 public:
  PrecisionGuard(c10::Device device, Precision precision);

 private:
  std::optional<AutocastGuard> guard_;
};

}  // namespace palimpsest::amp
