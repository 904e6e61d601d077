#include "palimpsest/kernels/cuda/abn.h"

#include "palimpsest/ops/abn/device.h"
#include "palimpsest/ops/common/cuda_call.h"
#include "palimpsest/ops/common/dtype.h"

namespace palimpsest::ops {

using kernels::AbnBackward;
using kernels::AbnForward;
using kernels::AbnProblem;

namespace cuda = kernels::cuda;

namespace {

/// work(queue), with the room that putting sums together needs.
template <class Work>
void reducing(const AbnProblem& layer, const at::Tensor& like, const Work& work) {
  CudaCall call(like);
  void* const workspace = call.workspace(cuda::abn_workspace_bytes(layer));
  work(cuda::Queue{call.stream(), workspace});
}

}  // namespace

AbnDeviceKernels abn_cuda_kernels() {
  return {
      .moves_running = true,
      .host_runs_ahead = true,
      .is_capturing = [](const at::Tensor& like) { return CudaCall(like).is_capturing(); },
      .frozen_statistics =
          [](const at::Tensor& running_mean, const at::Tensor& running_var, double eps,
             const at::Tensor& mean, const at::Tensor& inv_std) {
            const CudaCall call(mean);
            const at::Tensor var = running_var.to(running_mean.scalar_type());
            cuda::abn_frozen_statistics(dtype_of("abn", running_mean), mean.numel(), eps,
                                        running_mean.const_data_ptr(), var.const_data_ptr(),
                                        mean.mutable_data_ptr<double>(), inv_std.mutable_data_ptr<double>(),
                                        call.stream());
          },
      .apply =
          [](const AbnProblem& layer, const AbnForward& t, const at::Tensor& like) {
            const CudaCall call(like);
            cuda::abn_apply(layer, t, {call.stream(), nullptr});
          },
      .forward =
          [](const AbnProblem& layer, double eps, const AbnForward& t,
             const kernels::RunningStatistics& running, const at::Tensor& like) {
            reducing(layer, like,
                     [&](const cuda::Queue& queue) { cuda::abn_forward(layer, eps, t, running, queue); });
          },
      .rebuild =
          [](const AbnProblem& layer, const AbnForward& t, const at::Tensor& like) {
            const CudaCall call(like);
            cuda::abn_recompute_output(layer, t, {call.stream(), nullptr});
          },
      .backward_reduce =
          [](const AbnProblem& layer, const AbnBackward& t, const at::Tensor& like) {
            reducing(layer, like,
                     [&](const cuda::Queue& queue) { cuda::abn_backward_reduce(layer, t, queue); });
          },
      .backward_apply =
          [](const AbnProblem& layer, const AbnBackward& t, double m, const at::Tensor& like) {
            const CudaCall call(like);
            cuda::abn_backward_apply(layer, t, m, {call.stream(), nullptr});
          },
      .backward =
          [](const AbnProblem& layer, const AbnBackward& t, const at::Tensor& like) {
            reducing(layer, like, [&](const cuda::Queue& queue) { cuda::abn_backward(layer, t, queue); });
          },
  };
}

}  // namespace palimpsest::ops
