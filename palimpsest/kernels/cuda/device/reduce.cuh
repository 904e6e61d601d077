#pragma once

#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/platform.cuh"

#include <cstdint>

/// Sums over a warp, over a block and over the segments of a panel, and the way in which blocks hand their
/// results to the last block.
/// The order of additions is fixed: every run gives the same bytes.
namespace palimpsest::kernels::cuda {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// Returns the sum over a warp, in every lane.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  PALIMPSEST_UNROLL
  for (int apart = kWarp / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(kAllLanes, value, apart);
  return value;
}

/// Replaces each of `values` by its sum over the kThreads threads of the block, in every thread. All threads
/// of the block call it. Two barriers, so that a next call may follow at once.
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

/// Writes the sums of `values` over the kThreads threads of the block to `sums`, in each lane of the first
/// warp; those of the other warps are undefined. A warp adds up in T, and only the first warp adds in f64,
/// which some devices do at 1/64 of the rate. All threads of the block call it. Two barriers, so that a next
/// call may follow at once.
template <int kThreads, int Count, class T>
__device__ __forceinline__ void sum_in_first_warp(const T (&values)[Count], double (&sums)[Count]) {
  constexpr unsigned kWarps = kThreads / kWarp;
  static_assert(kWarps <= kWarp);
  PALIMPSEST_SHARED(of_warps, T[Count][kWarps]);
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  PALIMPSEST_UNROLL
  for (int i = 0; i < Count; ++i) {
    const T sum = warp_sum(values[i]);
    if (lane == 0) of_warps[i][warp] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    PALIMPSEST_UNROLL
    for (int i = 0; i < Count; ++i)
      sums[i] = warp_sum(lane < kWarps ? static_cast<double>(of_warps[i][lane]) : 0.0);
  }
  __syncthreads();
}

/// Returns whether this block is the last of `blocks` blocks to call it with the same `counter`, which is 0
/// before the first call and 0 again after the last. The last block sees what the other blocks wrote before
/// their calls. No block waits for another: blocks may run in any order, or one after the other. All threads
/// of the block call it.
__device__ __forceinline__ bool is_last_block(unsigned* counter, unsigned blocks) {
  PALIMPSEST_SHARED(is_last, bool);
  __syncthreads();
  // The fences of one thread hold for what the block did before and does after the barriers beside them. A
  // fence of all threads takes as long for each of its warps.
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicAdd(counter, 1u) == blocks - 1;
    if (is_last) {
      atomicExch(counter, 0u);
      __threadfence();
    }
  }
  __syncthreads();
  const bool last = is_last;
  __syncthreads();  // all threads have read `is_last` before a next call writes it
  return last;
}

/// Adds up the segments of a panel of `panel` channels, a power of two, from `records` (segments, C), by one
/// block of kThreads threads. Thread j < panel gets the sums of channel first_channel + j; the result of the
/// other threads is undefined. A thread has kAtOnce records under way, `none` in place of one that is not
/// there, and adds up sums_of(record). All threads of the block call it.
template <class Sums, int kAtOnce, class Record, class SumsOf>
__device__ __forceinline__ Sums sum_of_segments(const Record* records, int segments, int64_t channels,
                                                int64_t first_channel, int panel, const Record& none,
                                                const SumsOf& sums_of) {
  const int among = kThreads / panel;
  PALIMPSEST_SHARED(parts, Sums[kThreads]);
  const int j = static_cast<int>(threadIdx.x) % panel, part = static_cast<int>(threadIdx.x) / panel;
  const int64_t channel = first_channel + j;
  Sums own{};
  if (channel < channels)
    for (int first = part; first < segments; first += kAtOnce * among) {
      Record batch[kAtOnce];
      PALIMPSEST_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int segment = first + i * among;
        batch[i] = segment < segments ? records[segment * channels + channel] : none;
      }
      PALIMPSEST_UNROLL
      for (int i = 0; i < kAtOnce; ++i) own += sums_of(batch[i]);
    }
  parts[threadIdx.x] = own;
  __syncthreads();
  Sums all{};
  if (part == 0)
    for (int i = 0; i < among && i < segments; ++i) all += parts[i * panel + j];
  __syncthreads();
  return all;
}

/// The panel and segment of a block, in shared memory during a pass: they are needed only after the pass, and
/// would otherwise occupy registers all the time.
struct BlockPlace {
  int panel, segment;
};

}  // namespace palimpsest::kernels::cuda
