#pragma once

#include "palimpsest/kernels/cuda/stream.h"

namespace palimpsest::kernels::cuda {

/// The stream and the memory of a call that sums over a tensor.
struct Queue {
  Stream stream = nullptr;
  /// Device memory of ..._workspace_bytes() bytes for the call. It must be zero before its first use, and
  /// only one stream may use it at a time. Every call leaves it ready for the next call, whatever its
  /// problem.
  void* workspace = nullptr;
};

}  // namespace palimpsest::kernels::cuda
