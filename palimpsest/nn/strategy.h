#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::nn {

/// How a BN + activation + convolution block spends memory; gradients are the same. docs/memory.md tabulates
/// them.
enum class Strategy {
  kStandard,  ///< libtorch's batch norm, then the activation in place: keeps x and z
  kInplace2,  ///< the fused layer in place: keeps z only (In-Place ABN, form II)
};

/// "standard", "inplace_2", and its alias "inplace". Throws Error(kUsage) with the nearest name.
Strategy parse_strategy(std::string_view name);
std::string to_string(Strategy strategy);
std::vector<std::string> strategy_names();

}  // namespace palimpsest::nn
