// GPUs, in a build with CUDA. no_nccl.cpp has the same functions for other builds.
#include "palimpsest/distributed/common/libtorch.h"

#include <ATen/Context.h>

#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace palimpsest::distributed {

bool has_nccl() {
  return at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, std::move(options));
}

}  // namespace palimpsest::distributed
