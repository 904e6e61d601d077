#pragma once

#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/reduce.cuh"

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
/// channel j; the result of the other threads is undefined. All threads of the block call it.
template <class Walk, class T>
__device__ __forceinline__ GradientSums block_sums(const ThreadSums<T, Walk::kChannels>& own) {
  constexpr int kChannels = Walk::kChannels, kPanel = Walk::kPanelChannels;
  constexpr int kWarps = Walk::kBlockThreads / kWarp;
  if constexpr (kPanel == 1) {
    double all[2] = {static_cast<double>(own.dy[0]), static_cast<double>(own.dy_t[0])};
    block_sum<Walk::kBlockThreads>(all);
    return {all[0], all[1]};
  } else {
    constexpr int kWide = kPanel / kChannels;
    PALIMPSEST_SHARED(sums, T[2][kWarps][kPanel]);
    const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
    const int column = static_cast<int>(threadIdx.x) % kWide * kChannels;
    PALIMPSEST_UNROLL
    for (int c = 0; c < kChannels; ++c) {
      T dy = own.dy[c], dy_t = own.dy_t[c];
      PALIMPSEST_UNROLL
      for (int apart = kWarp / 2; apart >= kWide; apart /= 2) {
        dy += __shfl_xor_sync(kAllLanes, dy, apart);
        dy_t += __shfl_xor_sync(kAllLanes, dy_t, apart);
      }
      if (lane < kWide) sums[0][warp][column + c] = dy, sums[1][warp][column + c] = dy_t;
    }
    __syncthreads();
    GradientSums all = {0, 0};
    const int j = static_cast<int>(threadIdx.x) % kPanel;
    for (int w = 0; w < kWarps; ++w)
      all += {static_cast<double>(sums[0][w][j]), static_cast<double>(sums[1][w][j])};
    __syncthreads();
    return all;
  }
}

/// Adds up the segments of a panel, `records` (segments, C), by one block of kThreads threads. Thread j <
/// kPanel gets the sums of channel first_channel + j; the result of the other threads is undefined. All
/// threads of the block call it.
template <int kPanel>
__device__ __forceinline__ GradientSums sum_segments(const GradientSums* records, int segments,
                                                     int64_t channels, int64_t first_channel) {
  constexpr int kParts = kThreads / kPanel;
  PALIMPSEST_SHARED(parts, GradientSums[kThreads]);
  const int j = static_cast<int>(threadIdx.x) % kPanel, part = static_cast<int>(threadIdx.x) / kPanel;
  const int64_t channel = first_channel + j;
  GradientSums own = {0, 0};
  if (channel < channels)
    for (int segment = part; segment < segments; segment += kParts)
      own += records[segment * channels + channel];
  parts[threadIdx.x] = own;
  __syncthreads();
  GradientSums all = {0, 0};
  if (part == 0)
    for (int i = 0; i < kParts && i < segments; ++i) all += parts[i * kPanel + j];
  __syncthreads();
  return all;
}

}  // namespace palimpsest::kernels::cuda
