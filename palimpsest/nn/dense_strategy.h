#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::nn {

/// How a densely connected block spends memory; gradients and running statistics are the same.
/// docs/memory.md has the table.
enum class DenseStrategy {
  kNaive,           ///< libtorch's layers; each layer's gradients live as long as the graph
  kSharedGradient,  ///< libtorch's layers: concatenations and their normalizations are saved
  kShared,          ///< both are recomputed in backward, in storages that all layers share
  kCheckpoint,      ///< concatenation, normalization and 1x1 convolution run again (memory::recompute)
  kFused,           ///< ops::dense_block: no concatenation at all
};

/// Returns the strategy with this name: "naive", "shared_gradient", "shared", "checkpoint" or "fused". Throws
/// Error(kUsage) with the nearest name for any other.
DenseStrategy parse_dense_strategy(std::string_view name);
std::string to_string(DenseStrategy strategy);
std::vector<std::string> dense_strategy_names();

}  // namespace palimpsest::nn
