#include "palimpsest/kernels/cuda/abn.h"
#include "palimpsest/kernels/cuda/channel_slots.h"

#include "palimpsest/ops/abn/device.h"
#include "palimpsest/ops/common/cuda_call.h"
#include "palimpsest/ops/common/dtype.h"

namespace palimpsest::ops::abn_detail {

using kernels::AbnBackward;
using kernels::AbnForward;
using kernels::AbnProblem;

namespace cuda = kernels::cuda;

namespace {

/// Calls work(queue) with a workspace of that size.
template <class Work>
void with_workspace(int64_t bytes, const at::Tensor& like, const Work& work) {
  CudaCall call(like);
  void* const workspace = call.workspace(bytes);
  work(cuda::Queue{call.stream(), workspace});
}

/// Calls work(queue) with the workspace that the reductions of `problem` need.
template <class Work>
void with_workspace(const AbnProblem& problem, const at::Tensor& like, const Work& work) {
  with_workspace(cuda::abn_workspace_bytes(problem), like, work);
}

}  // namespace

const Device& cuda_device() {
  static constexpr Device device{
      .frozen_statistics =
          [](const at::Tensor& running_mean, const at::Tensor& running_var, double eps,
             const at::Tensor& mean, const at::Tensor& inv_std) {
            const CudaCall call(mean);
            cuda::abn_frozen_statistics(dtype_of("abn", running_mean), mean.numel(), eps,
                                        running_mean.const_data_ptr(), running_var.const_data_ptr(),
                                        mean.mutable_data_ptr<double>(), inv_std.mutable_data_ptr<double>(),
                                        call.stream());
          },
      .choose_slots =
          [](const kernels::SlotChoice& choice, const at::Tensor& like) {
            with_workspace(
                cuda::choose_slots_workspace_bytes(choice.problem), like,
                [&](const cuda::Queue& queue) { cuda::choose_slots(choice.problem, choice.tensors, queue); });
          },
      .statistics =
          [](const AbnProblem& problem, const void* x, double* mean, double* var, const at::Tensor& like) {
            with_workspace(problem, like, [&](const cuda::Queue& queue) {
              cuda::abn_statistics(problem, x, mean, var, queue);
            });
          },
      .apply =
          [](const AbnProblem& problem, const AbnForward& tensors, const at::Tensor& like) {
            const CudaCall call(like);
            cuda::abn_apply(problem, tensors, {call.stream(), nullptr});
          },
      .forward =
          [](const AbnProblem& problem, double eps, const AbnForward& tensors,
             const kernels::RunningStatistics& running, const kernels::SlotChoice* choice,
             const at::Tensor& like) {
            with_workspace(cuda::abn_forward_workspace_bytes(problem, choice), like,
                           [&](const cuda::Queue& queue) {
                             cuda::abn_forward(problem, eps, tensors, running, queue, choice);
                           });
          },
      .recompute_output =
          [](const AbnProblem& problem, const AbnForward& tensors, const at::Tensor& like) {
            const CudaCall call(like);
            cuda::abn_recompute_output(problem, tensors, {call.stream(), nullptr});
          },
      .backward_reduce =
          [](const AbnProblem& problem, const AbnBackward& tensors, const at::Tensor& like) {
            with_workspace(problem, like, [&](const cuda::Queue& queue) {
              cuda::abn_backward_reduce(problem, tensors, queue);
            });
          },
      .backward_apply =
          [](const AbnProblem& problem, const AbnBackward& tensors, double m, const at::Tensor& like) {
            const CudaCall call(like);
            cuda::abn_backward_apply(problem, tensors, m, {call.stream(), nullptr});
          },
      .backward =
          [](const AbnProblem& problem, const AbnBackward& tensors, const at::Tensor& like) {
            with_workspace(problem, like,
                           [&](const cuda::Queue& queue) { cuda::abn_backward(problem, tensors, queue); });
          },
  };
  return device;
}

}  // namespace palimpsest::ops::abn_detail
