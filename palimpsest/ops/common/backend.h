#pragma once

#include <ATen/core/Tensor.h>

namespace palimpsest::ops {

/// The kernels that run: kernels/cpu or kernels/cuda.
enum class Backend { kCpu, kCuda };

/// Returns the kernels for tensors on the device of `like`. Raises c10::Error "[op] ..." unless it is a CPU
/// or a CUDA device.
Backend backend_of(const char* op, const at::Tensor& like);

/// Returns whether the host runs ahead of the device, so that reading a tensor's values waits for all queued
/// work.
inline bool host_runs_ahead(Backend backend) {
  return backend == Backend::kCuda;
}

/// For tests only: runs calls over CPU tensors on `backend`, because the emulator can execute CUDA kernels.
void run_cpu_tensors_on(Backend backend);

}  // namespace palimpsest::ops
