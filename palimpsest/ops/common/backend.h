#pragma once

#include <ATen/core/Tensor.h>

namespace palimpsest::ops {

/// Which kernels run: kernels/cpu or kernels/cuda.
enum class Backend { kCpu, kCuda };

/// The kernels for tensors on the device of `like`. Raises c10::Error "[op] ..." unless that is a CPU or a
/// CUDA device.
Backend backend_of(const char* op, const at::Tensor& like);

/// Whether the host runs ahead of the device, so that reading a tensor's values waits for all queued work.
inline bool host_runs_ahead(Backend backend) {
  return backend == Backend::kCuda;
}

/// For tests alone: runs the calls over CPU tensors on `backend`, as the emulator can execute CUDA kernels.
void run_cpu_tensors_on(Backend backend);

}  // namespace palimpsest::ops
