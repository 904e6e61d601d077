#pragma once

#include "palimpsest/kernels/cuda/abn/table.cuh"

#include <cstdint>

/// How kernels that sum share the workspace of a Queue: first one counter a panel, 0 between launches, then
/// what blocks leave for the last one of them.
namespace palimpsest::kernels::cuda {

/// Panels of a launch whose panels have more than one segment; with so many there are enough blocks without.
inline constexpr int64_t kMostPanelsInSegments = 2048;
inline constexpr int64_t kCounterBytes = kMostPanelsInSegments * sizeof(unsigned);

inline Workspace workspace_of(const Queue& queue) {
  auto* const bytes = static_cast<unsigned char*>(queue.workspace);
  return {reinterpret_cast<unsigned*>(bytes), bytes + kCounterBytes};
}

}  // namespace palimpsest::kernels::cuda
