#pragma once

#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/queue.h"

#include <cstdint>

namespace palimpsest::kernels::cuda {

/// The memory in which the blocks of a panel leave their sums for the last block (is_last_block).
struct Workspace {
  unsigned* counters;  ///< one per panel, 0 between launches
  void* records;       ///< (segments, C): the sums of each segment per channel
};

inline constexpr int64_t kCounterBytes = kMostPanelsInSegments * sizeof(unsigned);

/// The memory of `queue`: first the counters, then the records.
inline Workspace workspace_of(const Queue& queue) {
  auto* const bytes = static_cast<unsigned char*>(queue.workspace);
  return {reinterpret_cast<unsigned*>(bytes), bytes + kCounterBytes};
}

}  // namespace palimpsest::kernels::cuda
