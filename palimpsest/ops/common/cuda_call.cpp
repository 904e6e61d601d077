#include "palimpsest/ops/common/cuda_call.h"

#include "palimpsest/ops/cuda.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace palimpsest::ops {

bool has_cuda_kernels() {
  return kernels::cuda::is_built();
}

CudaCall::CudaCall(const at::Tensor& like) : like_(like), guard_(like.device()) {
  if (!like.is_cuda()) return;  // the tests emulate the kernels
  const c10::Stream stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(like.device());
  stream_ = static_cast<kernels::cuda::Stream>(stream.native_handle());
}

void* CudaCall::mapped_memory(std::size_t bytes) {
  return kernels::cuda::mapped_host_memory(bytes);
}

bool CudaCall::is_capturing() const {
  return kernels::cuda::is_capturing(stream_);
}

void CudaCall::synchronize() const {
  if (like_.is_cuda()) c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(like_.device()).synchronize();
}

void* CudaCall::workspace(int64_t bytes) {
  if (bytes == 0) return nullptr;
  workspace_ = at::empty({bytes}, like_.options().dtype(at::kByte));
  return workspace_.mutable_data_ptr();
}

}  // namespace palimpsest::ops
