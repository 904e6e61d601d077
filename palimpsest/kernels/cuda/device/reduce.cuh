#pragma once

#include "palimpsest/kernels/cuda/device/platform.cuh"

namespace palimpsest::kernels::cuda {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// The sum over a warp, in every lane: pairs of lanes 16 apart first, the same bits every run.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  PALIMPSEST_UNROLL
  for (int apart = kWarp / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(kAllLanes, value, apart);
  return value;
}

/// The sums over a block of kThreads of Count numbers a thread, in every thread and in a fixed order.
/// Two barriers; may be called again at once.
template <int kThreads, int Count, class T>
__device__ __forceinline__ void block_sum(T (&values)[Count]) {
  constexpr int kWarps = kThreads / kWarp;
  PALIMPSEST_SHARED(sums, T[Count][kWarps]);
  PALIMPSEST_UNROLL
  for (int i = 0; i < Count; ++i) values[i] = warp_sum(values[i]);
  if (threadIdx.x % kWarp == 0) {
    PALIMPSEST_UNROLL
    for (int i = 0; i < Count; ++i) sums[i][threadIdx.x / kWarp] = values[i];
  }
  __syncthreads();
  PALIMPSEST_UNROLL
  for (int i = 0; i < Count; ++i) {
    values[i] = 0;
    PALIMPSEST_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) values[i] += sums[i][warp];
  }
  __syncthreads();
}

/// Whether this block is the last of `blocks` that come here with the same `counter`, which is 0 before the
/// first and 0 again after the last. What the others wrote before they came, the last one reads after.
/// Nothing waits: blocks may run in any order, one after the other. For all threads of a block at once.
__device__ __forceinline__ bool is_last_block(unsigned* counter, unsigned blocks) {
  PALIMPSEST_SHARED(is_last, bool);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(counter, 1u) == blocks - 1;
    if (is_last) atomicExch(counter, 0u);
  }
  __syncthreads();
  const bool last = is_last;
  __syncthreads();  // the answer is read before a next call changes it
  if (last) __threadfence();
  return last;
}

}  // namespace palimpsest::kernels::cuda
