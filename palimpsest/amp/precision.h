#pragma once

#include "palimpsest/amp/autocast_guard.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::amp {

/// What a network computes in; its parameters are f32 (or f64) in each case.
///   f32         the type of the parameters: no autocast
///   bf16        16-bit storage and maths with the exponents of f32: needs no loss scale
///   f16         IEEE half precision: gradients below 2^-24 are lost, those above 65504 overflow, so it needs
///               one (amp/grad_scaler.h)
///   f16-pseudo  storage in f16, maths in f32
enum class Precision { kF32, kBF16, kF16, kF16Pseudo };

/// By the names above. Throws Error(kUsage) with the nearest name.
Precision parse_precision(std::string_view name);
std::string to_string(Precision precision);
std::vector<std::string> precision_names();

/// Whether its gradients need a loss scale.
constexpr bool needs_loss_scale(Precision precision) {
  return precision == Precision::kF16 || precision == Precision::kF16Pseudo;
}

/// The scope of an AutocastGuard for `precision`, without a cache; nothing for f32.
class PrecisionGuard {
 public:
  PrecisionGuard(c10::Device device, Precision precision);

 private:
  std::optional<AutocastGuard> guard_;
};

}  // namespace palimpsest::amp
