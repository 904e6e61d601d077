#pragma once

#include "palimpsest/nn/activation.h"
#include "palimpsest/ops/abn.h"

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::nn {

/// How a normalization + activation + convolution block spends memory; gradients are the same.
/// docs/memory.md tabulates them.
enum class Strategy {
  kStandard,              ///< libtorch's batch norm, then the activation in place: keeps x and z
  kCheckpoint,            ///< keeps x, makes z again for the convolution's gradient
  kCheckpointNormalized,  ///< keeps the normalized x, over x; z is made again
  kInplace1,              ///< the fused layer over x: keeps z (In-Place ABN, form I)
  kInplace2,              ///< the same by form II, which never computes the normalized x
  kInplace1Bit,           ///< the same, and one bit an element where z alone does not give y back: GELU, SiLU
  kStoreY,                ///< keeps y = bn(x), over x; z = act(y) is made again: any activation
};

/// "standard", "checkpoint", "checkpoint_normalized", "inplace_1", "inplace_2" and its alias "inplace",
/// "inplace_1bit", "store_y". Throws Error(kUsage) with the nearest name.
Strategy parse_strategy(std::string_view name);
std::string to_string(Strategy strategy);
std::vector<std::string> strategy_names();

/// The tensor that ops::abn saves under a strategy other than `standard`, with an activation that fits.
ops::Saved saved_by_strategy(Strategy strategy, Activation activation);

/// Whether the strategy's backward can have this activation: the in-place ones need y back from z, or from z
/// and a bit. inplace_1bit takes what can be inverted without one, too, and keeps none then.
bool fits(Strategy strategy, Activation activation);

/// Throws Error(kUsage), naming the strategies that can, unless they fit.
void check_pair(Strategy strategy, Activation activation);

}  // namespace palimpsest::nn
