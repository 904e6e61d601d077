#pragma once

#include "palimpsest/kernels/cuda/stream.h"

namespace palimpsest::kernels::cuda {

/// The stream and the memory of a call that sums over a tensor.
struct Queue {
  Stream stream = nullptr;
  /// Device memory of ..._workspace_bytes() bytes for the call, with any content; null if that is 0. It may
  /// be freed or used again in the order of the stream as soon as the call returns.
  void* workspace = nullptr;
};

}  // namespace palimpsest::kernels::cuda
