#pragma once

#include "palimpsest/kernels/cuda/stream.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>

namespace palimpsest::ops {

/// While it lives, the device of `like` is the current one. It needs no CUDA header, so one library serves
/// machines with and without CUDA.
class CudaCall {
 public:
  explicit CudaCall(const at::Tensor& like);

  /// libtorch's current stream of that device.
  kernels::cuda::Stream stream() const { return stream_; }
  bool is_capturing() const;
  /// At least `bytes` of device memory, zero where no kernel has used it yet. There is one workspace per
  /// stream, which grows and stays; while a CUDA graph is captured there is one per call, which belongs to
  /// the graph.
  void* workspace(int64_t bytes);

 private:
  at::Tensor like_, workspace_;
  c10::DeviceGuard guard_;
  int64_t stream_id_ = 0;
  kernels::cuda::Stream stream_ = nullptr;
};

}  // namespace palimpsest::ops
