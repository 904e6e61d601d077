#include "palimpsest/ops/abn/device.h"
#include "palimpsest/ops/common/dtype.h"

#include <ATen/core/Tensor.h>

namespace palimpsest::ops::abn_detail {

const Device& cpu_device() {
  using kernels::AbnBackward;
  using kernels::AbnForward;
  using kernels::AbnProblem;
  static constexpr Device device{
      .frozen_statistics =
          [](const at::Tensor& running_mean, const at::Tensor& running_var, double eps,
             const at::Tensor& mean, const at::Tensor& inv_std) {
            kernels::cpu::abn_frozen_statistics(dtype_of("abn", running_mean), mean.numel(), eps,
                                                running_mean.const_data_ptr(), running_var.const_data_ptr(),
                                                mean.mutable_data_ptr<double>(),
                                                inv_std.mutable_data_ptr<double>());
          },
      .choose_slots = [](const kernels::SlotChoice& choice,
                         const at::Tensor&) { kernels::cpu::choose_slots(choice.problem, choice.tensors); },
      .statistics = [](const AbnProblem& problem, const void* x, double* mean, double* var,
                       const at::Tensor&) { kernels::cpu::abn_statistics(problem, x, mean, var); },
      .apply = [](const AbnProblem& problem, const AbnForward& tensors,
                  const at::Tensor&) { kernels::cpu::abn_apply(problem, tensors); },
      .forward =
          [](const AbnProblem& problem, double eps, const AbnForward& tensors,
             const kernels::RunningStatistics& running, const kernels::SlotChoice* choice,
             const at::Tensor&) {
            if (choice) kernels::cpu::choose_slots(choice->problem, choice->tensors);
            kernels::cpu::abn_forward(problem, eps, tensors, running);
          },
      .recompute_output = [](const AbnProblem& problem, const AbnForward& tensors,
                             const at::Tensor&) { kernels::cpu::abn_recompute_output(problem, tensors); },
      .backward_reduce = [](const AbnProblem& problem, const AbnBackward& tensors,
                            const at::Tensor&) { kernels::cpu::abn_backward_reduce(problem, tensors); },
      .backward_apply = [](const AbnProblem& problem, const AbnBackward& tensors, double m,
                           const at::Tensor&) { kernels::cpu::abn_backward_apply(problem, tensors, m); },
      .backward = [](const AbnProblem& problem, const AbnBackward& tensors,
                     const at::Tensor&) { kernels::cpu::abn_backward(problem, tensors); },
  };
  return device;
}

}  // namespace palimpsest::ops::abn_detail
