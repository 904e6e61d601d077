#pragma once

#include "palimpsest/kernels/cuda/stream.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <cstddef>
#include <cstdint>

namespace palimpsest::ops {

/// Makes the device of `like` the current device while this object lives. The class needs no CUDA header, so
/// one library works on machines with and without CUDA.
class CudaCall {
 public:
  explicit CudaCall(const at::Tensor& like);

  /// Returns zeroed memory of the host that devices write while the host reads it. It is never freed.
  static void* mapped_memory(std::size_t bytes);

  /// Returns libtorch's current stream of the device.
  kernels::cuda::Stream stream() const { return stream_; }
  bool is_capturing() const;
  /// Blocks until all work that is queued on the stream has run.
  void synchronize() const;
  /// Returns `bytes` of device memory for kernels that are queued while this object lives; null for 0 bytes.
  /// Nothing stays allocated behind it, which CUDA graphs and memory pools of libtorch rely on.
  void* workspace(int64_t bytes);

 private:
  at::Tensor like_, workspace_;
  c10::DeviceGuard guard_;
  kernels::cuda::Stream stream_ = nullptr;
};

}  // namespace palimpsest::ops
