#pragma once

#include "palimpsest/nn/activation.h"
#include "palimpsest/ops/abn.h"

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::nn {

/// How a block of normalization, activation and convolution spends memory; the gradients are the same.
/// docs/memory.md has the table.
enum class Strategy {
  kStandard,              ///< libtorch's batch norm, then the activation in place: saves x and z
  kCheckpoint,            ///< saves x and recomputes z for the convolution's gradient
  kCheckpointNormalized,  ///< saves the normalized x, over x, and recomputes z
  kInplace1,              ///< the fused layer over x: saves z (In-Place ABN, form I)
  kInplace2,              ///< the fused layer over x by form II, which never computes the normalized x
  kInplaceBit,  ///< form II, plus one bit per element for activations with two branches, such as GELU
  kStoreY,      ///< saves y = bn(x), over x, and recomputes z = act(y): any activation
};

/// "standard", "checkpoint", "checkpoint_normalized", "inplace_1", "inplace_2" and its alias "inplace",
/// "inplace_bit", "store_y"; also the old name "inplace_1bit". Throws Error(kUsage) with the nearest name.
Strategy parse_strategy(std::string_view name);
std::string to_string(Strategy strategy);
std::vector<std::string> strategy_names();

/// The tensor that ops::abn saves for backward. Throws Error(kInternal) for `standard`, which does not run
/// ops::abn.
ops::Saved saved_by_strategy(Strategy strategy, Activation activation);

/// Whether backward of the strategy can handle the activation: the in-place strategies recover y from z, or
/// from z and a bit. `inplace_bit` also takes invertible activations, and saves no bit for them.
bool fits(Strategy strategy, Activation activation);

/// Throws Error(kUsage), naming the strategies that fit the activation, unless this one does.
void check_pair(Strategy strategy, Activation activation);

}  // namespace palimpsest::nn
