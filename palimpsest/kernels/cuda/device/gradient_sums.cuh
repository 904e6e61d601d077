#pragma once

#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/reduce.cuh"
#include "palimpsest/kernels/cuda/device/strips.cuh"

#include <cstdint>

/// The two sums of a normalization's backward, from threads to the whole panel: of dy, and of dy * t, where
/// x-hat is t up to an offset and a factor. A thread adds in the accumulate type, everything above adds in
/// f64.
namespace palimpsest::kernels::cuda {

/// Sums over some values of one channel.
struct GradientSums {
  double dy, dy_t;

  __device__ __forceinline__ GradientSums& operator+=(const GradientSums& other) {
    dy += other.dy, dy_t += other.dy_t;
    return *this;
  }
};

/// The sums of one thread over its kChannels channels.
template <class T, int kChannels>
struct ThreadSums {
  T dy[kChannels] = {}, dy_t[kChannels] = {};

  /// Does the same as Stored::rotate, with channels instead of values.
  __device__ __forceinline__ void rotate() {
    if constexpr (kChannels > 1) {
      const ThreadSums from = *this;
      PALIMPSEST_UNROLL
      for (int c = 0; c < kChannels; ++c) {
        dy[c] = from.dy[(c + 1) % kChannels];
        dy_t[c] = from.dy_t[(c + 1) % kChannels];
      }
    }
  }
};

/// Adds up the sums of a block's threads. Thread j < Walk::kPanelChannels gets the sums of the panel's
/// channel j; the result of the other threads is undefined. `wide` is the number of vectors in a row of the
/// panel, a power of two. All threads of the block call it.
template <class Walk, class T>
__device__ __forceinline__ GradientSums block_sums(const ThreadSums<T, Walk::kChannels>& own, int wide) {
  constexpr int kChannels = Walk::kChannels, kPanel = Walk::kPanelChannels;
  constexpr int kWarps = Walk::kBlockThreads / kWarp;
  if constexpr (kPanel == 1) {
    const T values[2] = {own.dy[0], own.dy_t[0]};
    double all[2];
    sum_in_first_warp<Walk::kBlockThreads>(values, all);
    return {all[0], all[1]};
  } else {
    PALIMPSEST_SHARED(sums, T[2][kWarps][kPanel]);
    const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
    const int column = (static_cast<int>(threadIdx.x) & (wide - 1)) * kChannels;
    ThreadSums<T, kChannels> of_warp = own;
    PALIMPSEST_NO_UNROLL
    for (int apart = kWarp / 2; apart >= wide; apart /= 2) {
      PALIMPSEST_UNROLL
      for (int c = 0; c < kChannels; ++c) {
        of_warp.dy[c] += __shfl_xor_sync(kAllLanes, of_warp.dy[c], apart);
        of_warp.dy_t[c] += __shfl_xor_sync(kAllLanes, of_warp.dy_t[c], apart);
      }
    }
    if (lane < wide) {
      PALIMPSEST_UNROLL
      for (int c = 0; c < kChannels; ++c)
        sums[0][warp][column + c] = of_warp.dy[c], sums[1][warp][column + c] = of_warp.dy_t[c];
    }
    __syncthreads();
    GradientSums all = {0, 0};
    if (const int j = static_cast<int>(threadIdx.x); j < wide * kChannels)
      for (int w = 0; w < kWarps; ++w)
        all += {static_cast<double>(sums[0][w][j]), static_cast<double>(sums[1][w][j])};
    __syncthreads();
    return all;
  }
}

/// block_sums for Strips: thread j < cut.channels gets the sums of the panel's channel j. `parts` is for
/// sum_strip, and may be written after the call.
template <class Walk, class T>
__device__ __forceinline__ GradientSums strip_sums(const ThreadSums<T, Walk::kChannels>& own, const Cut& cut,
                                                   T* parts) {
  T sums[2][Walk::kVector];
  PALIMPSEST_UNROLL
  for (int i = 0; i < Walk::kVector; ++i) sums[0][i] = own.dy[i], sums[1][i] = own.dy_t[i];
  double all[2] = {};
  sum_strip<Walk>(cut, sums, parts, all);
  return {all[0], all[1]};
}

/// Adds up the sums of a panel's segments, as sum_of_segments does.
__device__ __forceinline__ GradientSums sum_segments(const GradientSums* records, int segments,
                                                     int64_t channels, int64_t first_channel, int panel) {
  constexpr int kAtOnce = 8;
  return sum_of_segments<GradientSums, kAtOnce>(records, segments, channels, first_channel, panel,
                                                GradientSums{0, 0},
                                                [](const GradientSums& sums) { return sums; });
}

}  // namespace palimpsest::kernels::cuda
