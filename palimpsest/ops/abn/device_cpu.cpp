#include "palimpsest/ops/abn/device.h"

#include <c10/util/Exception.h>

namespace palimpsest::ops {
namespace {

AbnDeviceKernels abn_cpu_kernels() {
  using kernels::AbnBackward;
  using kernels::AbnForward;
  using kernels::AbnProblem;
  return {
      .frozen_statistics =
          [](const at::Tensor& running_mean, const at::Tensor& running_var, double eps,
             const at::Tensor& mean, const at::Tensor& inv_std) {
            mean.copy_(running_mean);
            inv_std.copy_(running_var).add_(eps).rsqrt_();
          },
      .apply = [](const AbnProblem& layer, const AbnForward& t,
                  const at::Tensor&) { kernels::cpu::abn_apply(layer, t); },
      .forward = [](const AbnProblem& layer, double eps, const AbnForward& t,
                    const kernels::RunningStatistics&,
                    const at::Tensor&) { kernels::cpu::abn_forward(layer, eps, t); },
      .rebuild = [](const AbnProblem& layer, const AbnForward& t,
                    const at::Tensor&) { kernels::cpu::abn_recompute_output(layer, t); },
      .backward_reduce = [](const AbnProblem& layer, const AbnBackward& t,
                            const at::Tensor&) { kernels::cpu::abn_backward_reduce(layer, t); },
      .backward_apply = [](const AbnProblem& layer, const AbnBackward& t, double m,
                           const at::Tensor&) { kernels::cpu::abn_backward_apply(layer, t, m); },
      .backward = [](const AbnProblem& layer, const AbnBackward& t,
                     const at::Tensor&) { kernels::cpu::abn_backward(layer, t); },
  };
}

}  // namespace

AbnDeviceKernels& abn_device_kernels(c10::DeviceType device) {
  static AbnDeviceKernels cpu = abn_cpu_kernels(), cuda = abn_cuda_kernels();
  TORCH_CHECK(device == c10::DeviceType::CPU || device == c10::DeviceType::CUDA,
              "[abn] there are kernels for CPU and CUDA, got a tensor on ", device);
  return device == c10::DeviceType::CPU ? cpu : cuda;
}

}  // namespace palimpsest::ops
