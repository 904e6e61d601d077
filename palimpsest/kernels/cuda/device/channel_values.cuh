#pragma once

#include "palimpsest/kernels/cuda/device/platform.cuh"

#include <cstdint>

namespace palimpsest::kernels::cuda {

template <class T>
__device__ __forceinline__ double value_or(const T* values, int64_t c, double absent) {
  return values ? static_cast<double>(values[c]) : absent;
}

/// The part of a mean that does not fit into a T.
template <class T>
__device__ __forceinline__ double low_part(double mean) {
  return mean - static_cast<double>(static_cast<T>(mean));
}

}  // namespace palimpsest::kernels::cuda
