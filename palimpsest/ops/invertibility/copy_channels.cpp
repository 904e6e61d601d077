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

}  // namespace

void gather_channels(const kernels::AbnProblem& problem, const at::Tensor& index, const at::Tensor& full,
                     const at::Tensor& part) {
  check_copied(problem, index, full, part);
  const auto* const slots = index.const_data_ptr<int64_t>();
  const void* const from = full.const_data_ptr();
  void* const to = part.mutable_data_ptr();
  if (backend_of("abn", full) == Backend::kCpu)
    return kernels::cpu::gather_channels(problem, slots, index.numel(), from, to);
  const CudaCall call(full);
  kernels::cuda::gather_channels(problem, slots, index.numel(), from, to, call.stream());
}

void scatter_channels(const kernels::AbnProblem& problem, const at::Tensor& index, const at::Tensor& part,
                      const at::Tensor& full) {
  check_copied(problem, index, full, part);
  const auto* const slots = index.const_data_ptr<int64_t>();
  const void* const from = part.const_data_ptr();
  void* const to = full.mutable_data_ptr();
  if (backend_of("abn", full) == Backend::kCpu)
    return kernels::cpu::scatter_channels(problem, slots, index.numel(), from, to);
  const CudaCall call(full);
  kernels::cuda::scatter_channels(problem, slots, index.numel(), from, to, call.stream());
}

}  // namespace palimpsest::ops::invertibility
