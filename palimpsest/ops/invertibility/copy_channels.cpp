#include "palimpsest/ops/invertibility/copy_channels.h"

#include "palimpsest/kernels/channel_slots.h"
#include "palimpsest/kernels/cuda/channel_slots.h"
#include "palimpsest/ops/common/backend.h"
#include "palimpsest/ops/common/cuda_call.h"
#include "palimpsest/ops/common/dtype.h"
#include "palimpsest/ops/common/layout.h"

namespace palimpsest::ops::invertibility {
namespace {

/// The kernels trust pointers; a wrong tensor is a mistake of this library.
void check_copied(const kernels::AbnProblem& problem, const at::Tensor& index, const at::Tensor& full,
                  const at::Tensor& part) {
  const Shape3& shape = problem.shape;
  TORCH_INTERNAL_ASSERT(index.is_contiguous() && full.numel() == shape.elements() &&
                        part.numel() == shape.n * index.numel() * shape.s &&
                        dtype_of(full.scalar_type()) == problem.dtype &&
                        part.scalar_type() == full.scalar_type());
  for (const at::Tensor* t : {&full, &part})
    TORCH_INTERNAL_ASSERT(t->dim() == 1 ? t->is_contiguous()
                                        : is_contiguous_in(t->sizes(), t->strides(), problem.layout));
}

/// Calls one of the two functions, which take the same arguments, and on a GPU a stream.
template <class OnCpu, class OnCuda>
void copy(const kernels::AbnProblem& problem, const at::Tensor& index, const at::Tensor& from,
          const at::Tensor& to, const OnCpu& on_cpu, const OnCuda& on_cuda) {
  const auto* const slots = index.const_data_ptr<int64_t>();
  if (backend_of("abn", to) == Backend::kCpu)
    return on_cpu(problem, slots, index.numel(), from.const_data_ptr(), to.mutable_data_ptr());
  const CudaCall call(to);
  on_cuda(problem, slots, index.numel(), from.const_data_ptr(), to.mutable_data_ptr(), call.stream());
}

}  // namespace

void gather_channels(const kernels::AbnProblem& problem, const at::Tensor& index, const at::Tensor& full,
                     const at::Tensor& part) {
  check_copied(problem, index, full, part);
  copy(problem, index, full, part, kernels::cpu::gather_channels, kernels::cuda::gather_channels);
}

void scatter_channels(const kernels::AbnProblem& problem, const at::Tensor& index, const at::Tensor& part,
                      const at::Tensor& full) {
  check_copied(problem, index, full, part);
  copy(problem, index, part, full, kernels::cpu::scatter_channels, kernels::cuda::scatter_channels);
}

}  // namespace palimpsest::ops::invertibility
