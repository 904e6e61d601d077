#pragma once

#include "palimpsest/kernels/cuda/stream.h"

namespace palimpsest::kernels::cuda {

/// Where a call that sums over a tensor runs.
struct Queue {
  Stream stream = nullptr;
  /// Device memory, as many bytes as ..._workspace_bytes() of the call says. Zero before its first use, and
  /// used by one stream at a time. Every call leaves it fit for the next one, whatever that call's problem.
  void* workspace = nullptr;
};

}  // namespace palimpsest::kernels::cuda
