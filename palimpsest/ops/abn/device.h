#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/channel_slots.h"

#include <ATen/core/Tensor.h>

namespace palimpsest::ops::abn_detail {

/// The layer's kernels (kernels/abn.h) on one kind of device: everything that differs between devices.
/// `like` is any tensor of the call. It determines the device and its current stream.
struct Device {
  /// (C) running statistics, contiguous, in one dtype -> mean and 1/sqrt(var + eps), f64.
  void (*frozen_statistics)(const at::Tensor& running_mean, const at::Tensor& running_var, double eps,
                            const at::Tensor& mean, const at::Tensor& inv_std);
  void (*choose_slots)(const kernels::SlotChoice& choice, const at::Tensor& like);
  void (*statistics)(const kernels::AbnProblem& problem, const void* x, double* mean, double* var,
                     const at::Tensor& like);
  void (*apply)(const kernels::AbnProblem& problem, const kernels::AbnForward& tensors,
                const at::Tensor& like);
  /// `choice`: null, or a choice that this call makes, too. On a GPU it often costs no launch.
  void (*forward)(const kernels::AbnProblem& problem, double eps, const kernels::AbnForward& tensors,
                  const kernels::RunningStatistics& running, const kernels::SlotChoice* choice,
                  const at::Tensor& like);
  void (*recompute_output)(const kernels::AbnProblem& problem, const kernels::AbnForward& tensors,
                           const at::Tensor& like);
  void (*backward_reduce)(const kernels::AbnProblem& problem, const kernels::AbnBackward& tensors,
                          const at::Tensor& like);
  void (*backward_apply)(const kernels::AbnProblem& problem, const kernels::AbnBackward& tensors, double m,
                         const at::Tensor& like);
  void (*backward)(const kernels::AbnProblem& problem, const kernels::AbnBackward& tensors,
                   const at::Tensor& like);
};

const Device& cpu_device();
/// Runs on libtorch's current stream of the tensors' device.
const Device& cuda_device();

}  // namespace palimpsest::ops::abn_detail
