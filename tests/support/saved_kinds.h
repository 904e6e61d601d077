#pragma once

#include "palimpsest/kernels/abn.h"

#include <vector>

namespace palimpsest::testing {

using kernels::Saved;

/// Every tensor that the fused layer may save for backward.
inline constexpr Saved kAllSaved[] = {Saved::kOutput,     Saved::kOutputForm1, Saved::kPreActivation,
                                      Saved::kNormalized, Saved::kInput,       Saved::kOutputBit};

/// Whether backward through the activation can start from that tensor.
constexpr bool can_save(Activation activation, Saved saved) {
  if (saved == Saved::kOutputBit) return kernels::has_branches(activation);
  return !saves_output(saved) || kernels::is_invertible(activation);
}

/// The activations for which holds(activation) is true.
template <class Predicate>
std::vector<Activation> activations_that(const Predicate& holds) {
  std::vector<Activation> result;
  for (const auto& [activation, name, is_listed] : kernels::kActivations)
    if (holds(activation)) result.push_back(activation);
  return result;
}

/// The activations for which z and one bit determine y.
inline std::vector<Activation> branched_activations() {
  return activations_that(kernels::has_branches);
}

}  // namespace palimpsest::testing
