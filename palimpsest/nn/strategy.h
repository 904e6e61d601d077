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
  kStandard,              ///< libtorch's batch norm, then libtorch's activation: saves x and z (or y)
  kCheckpoint,            ///< saves x and recomputes z for the convolution's gradient
  kCheckpointNormalized,  ///< saves the normalized x, over x, and recomputes z
  kInplace1,              ///< the fused layer over x: saves z (In-Place ABN, form I)
  kInplace2,              ///< the fused layer over x by form II, which never computes the normalized x
  kInplaceBit,            ///< form II plus one bit per element: for GELU, SiLU and others with two branches
  kStoreY,                ///< saves y = bn(x), over x, and recomputes z = act(y): any activation
};

/// Returns the strategy with this name: "standard", "checkpoint", "checkpoint_normalized", "inplace_1",
/// "inplace_2" or its alias "inplace", "inplace_bit", "store_y"; also the old name "inplace_1bit". Throws
/// Error(kUsage) with the nearest name for any other.
Strategy parse_strategy(std::string_view name);
std::string to_string(Strategy strategy);
std::vector<std::string> strategy_names();

/// Returns which tensor ops::abn saves for backward. Throws Error(kInternal) for `standard`, which does not
/// run ops::abn.
ops::Saved saved_by_strategy(Strategy strategy, Activation activation);

/// Returns whether the strategy's backward can handle the activation. `inplace_1` and `inplace_2` recover y
/// from z, so they need an invertible activation; `inplace_bit` also takes GELU and SiLU, and saves no bit
/// for an invertible activation.
bool fits(Strategy strategy, Activation activation);

/// Throws Error(kUsage), naming the strategies that fit the activation, unless fits(strategy, activation).
void check_pair(Strategy strategy, Activation activation);

}  // namespace palimpsest::nn
