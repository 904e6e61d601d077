#pragma once

#include "palimpsest/kernels/abn.h"

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

}  // namespace palimpsest::testing
