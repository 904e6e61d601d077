#pragma once

#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/reduce.cuh"
#include "palimpsest/kernels/cuda/device/strips.cuh"

#include <cstdint>

/// Mean and sum of squared deviations in one pass. E[x^2] - E[x]^2 would lose all digits where |mean| is
/// large against the standard deviation: each thread sums x - pivot and (x - pivot)^2 in the accumulate type,
/// where pivot is the mean of the first values that it reads. Threads, blocks and clusters are added up in
/// f64 around a common pivot, in a fixed order. A pivot that is an outlier costs digits in proportion to its
/// share of the variance.
namespace palimpsest::kernels::cuda::abn_detail {

/// The moments of `count` values.
struct Moments {
  double count;
  double mean;
  double squares;  ///< of the deviations from the mean
};

/// Moments as sums around a pivot, which can be added.
struct PivotSums {
  double count, sum, squares;

  __device__ __forceinline__ static PivotSums of(const Moments& moments, double pivot) {
    const double off = moments.mean - pivot;
    return {moments.count, moments.count * off, moments.squares + moments.count * off * off};
  }
  __device__ __forceinline__ PivotSums& operator+=(const PivotSums& other) {
    count += other.count, sum += other.sum, squares += other.squares;
    return *this;
  }
  __device__ __forceinline__ Moments moments(double pivot) const {
    if (count == 0) return {0, pivot, 0};
    const double off = sum / count;
    return {count, pivot + off, squares - sum * off};
  }
};

/// The sums of one thread over its kChannels channels, each with `count` values.
template <class T, int kChannels>
struct ThreadMoments {
  T pivot[kChannels], sum[kChannels], squares[kChannels];
  int count = 0;

  __device__ __forceinline__ ThreadMoments() {
    PALIMPSEST_UNROLL
    for (int c = 0; c < kChannels; ++c) pivot[c] = sum[c] = squares[c] = 0;
  }

  __device__ __forceinline__ void add(int channel, T value) {
    const T off = value - pivot[channel];
    sum[channel] += off;
    squares[channel] += off * off;
  }

  /// Gives one channel's sums around the pivot that all threads of the block have in common.
  __device__ __forceinline__ void move(int channel, T common, T& moved_sum, T& moved_squares) const {
    const T off = pivot[channel] - common;
    moved_sum = sum[channel] + static_cast<T>(count) * off;
    moved_squares = squares[channel] + off * (sum[channel] + moved_sum);
  }
};

/// Adds up the moments of a block's threads. Thread j < Walk::kPanelChannels gets the moments of the panel's
/// channel j; the result of the other threads is undefined. `rows` is the number of values per channel in
/// Columns, and `wide` the vectors in a row of the panel; of AlignedPlanes images and vectors per plane;
/// Planes need neither. All threads of the block call
/// it.
template <class Walk, class T>
__device__ __forceinline__ Moments block_moments(const ThreadMoments<T, Walk::kChannels>& own, int rows,
                                                 int wide) {
  constexpr int kChannels = Walk::kChannels, kPanel = Walk::kPanelChannels;
  constexpr int kWarps = Walk::kBlockThreads / kWarp;
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  if constexpr (kPanel == 1) {
    // The first thread that has a value gives the pivot.
    PALIMPSEST_SHARED(pivots, T[kWarps]);
    PALIMPSEST_SHARED(seen, bool[kWarps]);
    const unsigned lanes = __ballot_sync(kAllLanes, own.count > 0);
    if (lane == (lanes ? __ffs(static_cast<int>(lanes)) - 1 : 0)) {
      pivots[warp] = own.pivot[0];
      seen[warp] = lanes != 0;
    }
    __syncthreads();
    T pivot = 0;
    for (int w = kWarps - 1; w >= 0; --w) pivot = seen[w] ? pivots[w] : pivot;
    T values[2];
    own.move(0, pivot, values[0], values[1]);
    double sums[2], count[1];
    sum_in_first_warp<Walk::kBlockThreads>(values, sums);
    if constexpr (Walk::kWhole) {
      count[0] = static_cast<double>(int64_t{rows} * wide * Walk::kVector);  // whole planes
    } else {
      const int counts[1] = {own.count};
      sum_in_first_warp<Walk::kBlockThreads>(counts, count);
    }
    if (warp > 0) return {0, 0, 0};
    return PivotSums{count[0], sums[0], sums[1]}.moments(static_cast<double>(pivot));
  } else {
    PALIMPSEST_SHARED(pivots, T[kPanel]);
    PALIMPSEST_SHARED(sums, T[2][kWarps][kPanel]);
    const int column = (static_cast<int>(threadIdx.x) & (wide - 1)) * kChannels;
    if (static_cast<int>(threadIdx.x) < wide) {
      PALIMPSEST_UNROLL
      for (int c = 0; c < kChannels; ++c) pivots[column + c] = own.pivot[c];
    }
    __syncthreads();
    T sum[kChannels], squares[kChannels];
    PALIMPSEST_UNROLL
    for (int c = 0; c < kChannels; ++c) own.move(c, pivots[column + c], sum[c], squares[c]);
    PALIMPSEST_NO_UNROLL
    for (int apart = kWarp / 2; apart >= wide; apart /= 2) {
      PALIMPSEST_UNROLL
      for (int c = 0; c < kChannels; ++c) {
        // A warp adds up in T as well: it has fewer terms than each of its threads.
        sum[c] += __shfl_xor_sync(kAllLanes, sum[c], apart);
        squares[c] += __shfl_xor_sync(kAllLanes, squares[c], apart);
      }
    }
    if (lane < wide) {
      PALIMPSEST_UNROLL
      for (int c = 0; c < kChannels; ++c)
        sums[0][warp][column + c] = sum[c], sums[1][warp][column + c] = squares[c];
    }
    __syncthreads();
    Moments result = {0, 0, 0};
    if (const int j = static_cast<int>(threadIdx.x); j < wide * kChannels) {
      PivotSums all = {static_cast<double>(rows), 0, 0};
      for (int w = 0; w < kWarps; ++w)
        all += {0, static_cast<double>(sums[0][w][j]), static_cast<double>(sums[1][w][j])};
      result = all.moments(static_cast<double>(pivots[j]));
    }
    __syncthreads();
    return result;
  }
}

/// block_moments for Strips: thread j < cut.channels gets the moments of the panel's channel j. `rows` is the
/// number of images; `parts` is for sum_strip, and may be written after the call.
template <class Walk, class T>
__device__ __forceinline__ Moments strip_moments(const ThreadMoments<T, Walk::kChannels>& own, const Cut& cut,
                                                 int rows, T* parts) {
  constexpr int V = Walk::kVector;
  PALIMPSEST_SHARED(pivots, T[Walk::kPanelChannels]);
  const int pixels = static_cast<int>(cut.shape.s);
  T sums[2][V];
  {
    const StripPlace<V> at(cut);
    // The first value of a channel gives the pivot.
    if (at.row == 0) {
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; ++i)
        if (i == at.begin) pivots[at.channel + (i > 0)] = own.pivot[i];
    }
    __syncthreads();
    const T first = pivots[at.channel], second = at.split < V ? pivots[at.channel + 1] : first;
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) own.move(i, i < at.split ? first : second, sums[0][i], sums[1][i]);
  }
  double all[2];
  sum_strip<Walk>(cut, sums, parts, all);
  const int j = static_cast<int>(threadIdx.x);
  if (j >= cut.channels) return {0, 0, 0};
  return PivotSums{static_cast<double>(int64_t{rows} * pixels), all[0], all[1]}.moments(
      static_cast<double>(pivots[j]));
}

/// Adds up the moments of a panel's segments, as sum_of_segments does.
__device__ __forceinline__ Moments merge_segments(const Moments* records, int segments, int64_t channels,
                                                  int64_t first_channel, int panel) {
  constexpr int kAtOnce = 4;
  const int64_t channel = first_channel + static_cast<int>(threadIdx.x) % panel;
  const double pivot = channel < channels ? records[channel].mean : 0;
  return sum_of_segments<PivotSums, kAtOnce>(
             records, segments, channels, first_channel, panel, Moments{0, pivot, 0},
             [&](const Moments& moments) { return PivotSums::of(moments, pivot); })
      .moments(pivot);
}

}  // namespace palimpsest::kernels::cuda::abn_detail
