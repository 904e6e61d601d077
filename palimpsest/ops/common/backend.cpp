#include "palimpsest/ops/common/backend.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace palimpsest::ops {
namespace {

std::atomic<Backend> backend_of_cpu_tensors{Backend::kCpu};

}  // namespace

Backend backend_of(const char* op, const at::Tensor& like) {
  if (like.is_cpu()) return backend_of_cpu_tensors.load(std::memory_order_relaxed);
  TORCH_CHECK(like.is_cuda(), "[", op, "] there are kernels for CPU and CUDA, got a tensor on ",
              like.device());
  return Backend::kCuda;
}

void run_cpu_tensors_on(Backend backend) {
  backend_of_cpu_tensors = backend;
}

}  // namespace palimpsest::ops
