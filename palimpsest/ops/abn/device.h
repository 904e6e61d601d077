#pragma once

#include "palimpsest/kernels/abn.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

namespace palimpsest::ops {

/// The layer's kernels (kernels/abn.h) on one kind of device: all of the operators that differs between them.
/// `like`: any tensor of the call, which says on which device, and so on which stream.
struct AbnDeviceKernels {
  /// Whether forward moves running statistics in its own launches; else the caller does with operators.
  bool moves_running = false;
  /// Whether the host runs ahead of the device, so that reading a tensor's values waits for all that is
  /// queued.
  bool host_runs_ahead = false;
  bool (*is_capturing)(const at::Tensor& like) = nullptr;  ///< a CUDA graph; null: no such thing
  /// (C) running statistics, each contiguous, of any floating dtype -> mean and 1/sqrt(var + eps), f64.
  void (*frozen_statistics)(const at::Tensor& running_mean, const at::Tensor& running_var, double eps,
                            const at::Tensor& mean, const at::Tensor& inv_std);
  void (*apply)(const kernels::AbnProblem& layer, const kernels::AbnForward& t, const at::Tensor& like);
  void (*forward)(const kernels::AbnProblem& layer, double eps, const kernels::AbnForward& t,
                  const kernels::RunningStatistics& running, const at::Tensor& like);
  void (*rebuild)(const kernels::AbnProblem& layer, const kernels::AbnForward& t, const at::Tensor& like);
  void (*backward_reduce)(const kernels::AbnProblem& layer, const kernels::AbnBackward& t,
                          const at::Tensor& like);
  void (*backward_apply)(const kernels::AbnProblem& layer, const kernels::AbnBackward& t, double m,
                         const at::Tensor& like);
  void (*backward)(const kernels::AbnProblem& layer, const kernels::AbnBackward& t, const at::Tensor& like);
};

/// Of CPU and CUDA; c10::Error for another device. Tests put others in their place.
AbnDeviceKernels& abn_device_kernels(c10::DeviceType device);

/// kernels/cuda, on the stream that is libtorch's current one of the device.
AbnDeviceKernels abn_cuda_kernels();

}  // namespace palimpsest::ops
