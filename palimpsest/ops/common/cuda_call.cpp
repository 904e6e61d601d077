#include "palimpsest/ops/common/cuda_call.h"

#include "palimpsest/ops/cuda.h"

#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <utility>

namespace palimpsest::ops {

bool has_cuda_kernels() {
  return kernels::cuda::is_built();
}

CudaCall::CudaCall(const at::Tensor& like) : like_(like), guard_(like.device()) {
  if (!like.is_cuda()) return;  // the tests emulate the kernels
  const c10::Stream stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(like.device());
  stream_id_ = stream.id();
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
  static std::mutex mutex;
  static auto& of_streams =
      *new std::map<std::pair<c10::DeviceIndex, int64_t>, at::Tensor>;  // outlives libtorch
  const auto fresh = [&] { return at::zeros({bytes}, like_.options().dtype(at::kByte)); };
  if (is_capturing()) {
    workspace_ = fresh();
  } else {
    // Calls on one stream run one after the other, whichever threads make them.
    const std::scoped_lock lock(mutex);
    at::Tensor& kept = of_streams[{like_.device().index(), stream_id_}];
    if (!kept.defined() || kept.numel() < bytes) kept = fresh();
    workspace_ = kept;
  }
  return workspace_.mutable_data_ptr();
}

}  // namespace palimpsest::ops
