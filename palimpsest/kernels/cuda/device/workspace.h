#pragma once

#include "palimpsest/kernels/cuda/device/counters.h"
#include "palimpsest/kernels/cuda/queue.h"

namespace palimpsest::kernels::cuda {

/// The memory in which the blocks of a panel leave their sums for the last block (is_last_block).
struct Workspace {
  unsigned* counters = nullptr;  ///< one per panel, 0 between launches
  void* records = nullptr;       ///< (segments, C): the sums of each segment per channel
};

/// Calls launch(workspace), for a launch whose blocks hand over sums (`hands_over`; if not, the workspace is
/// empty). If it throws, the counters are zeroed, so that later launches on the stream are right.
template <class Launch>
void with_workspace(const Queue& queue, bool hands_over, const Launch& launch) {
  if (!hands_over) return launch(Workspace{});
  unsigned* const counters = counters_of(queue.stream);
  try {
    launch(Workspace{counters, queue.workspace});
  } catch (...) {
    reset_counters(queue.stream, counters);
    throw;
  }
}

}  // namespace palimpsest::kernels::cuda
