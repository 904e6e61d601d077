#pragma once

#include <c10/core/Device.h>

namespace palimpsest::ops {

/// Returns whether the operators of this build take tensors on a GPU.
bool has_cuda_kernels();

/// Returns whether they take tensors on this device.
inline bool has_kernels_for(const c10::Device& device) {
  return device.is_cpu() || (device.is_cuda() && has_cuda_kernels());
}

}  // namespace palimpsest::ops
