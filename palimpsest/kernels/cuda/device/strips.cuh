#pragma once

#include "palimpsest/kernels/cuda/device/panel_values.cuh"
#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/reduce.cuh"
#include "palimpsest/kernels/cuda/device/walk.cuh"

#include <cstdint>
#include <type_traits>

/// Small planes in NCHW: walks over strips of neighbouring channels, and the sums of their channels. In an
/// image the cut.channels channels of a strip are contiguous, and cut.channels is such that they begin and
/// end at multiples of 16 bytes: no edges, though a single plane may have any size. A plane has at least V
/// values, so that a vector belongs to one channel or to two.
namespace palimpsest::kernels::cuda {

/// Where a thread of a block works in all rows of a strip.
template <int V>
struct StripPlace {
  int row, column;  ///< the thread's first row in a segment; its vector in each row
  int channel;      ///< of the first value, counted within the panel
  int split;        ///< the values from here on belong to the next channel; V: all belong to one
  int begin;        ///< the value that is the first one of a channel; V or more: none is

  __device__ __forceinline__ explicit StripPlace(const Cut& cut) {
    const int pixels = static_cast<int>(cut.shape.s);
    row = cut.by_wide.divide(static_cast<int>(threadIdx.x));
    column = static_cast<int>(threadIdx.x) - row * cut.wide;
    channel = cut.by_pixels.divide(column * V);
    const int within = column * V - channel * pixels;
    split = pixels - within < V ? pixels - within : V;
    begin = within == 0 ? 0 : pixels - within;
  }
};

/// The walk over a panel whose rows are the images, each of cut.wide whole vectors. A thread has the same
/// column in all rows.
template <int V, int kThreads>
class ImageRows {
 public:
  static constexpr int kBlockThreads = kThreads;
  static constexpr int kVector = V;
  static constexpr bool kWhole = true;  ///< all threads together meet each value of a piece

  __device__ __forceinline__ ImageRows(const Cut& cut, int panel)
      : cut_(cut), begin_(int64_t{panel} * cut.wide * V + first_value()) {}

  __device__ __forceinline__ int step() const { return cut_.rows * cut_.wide; }

  template <int kUnroll, class Body>
  __device__ __forceinline__ void vectors(const Cut& cut, int segment, const Body& body) const {
    const int last = cut.first_piece(segment + 1), row = cut.first_piece(segment) + within();
    if (static_cast<int>(threadIdx.x) >= step() || row >= last) return;
    const int rows = cut_.rows;
    const int count = (last - row + rows - 1) / rows;  // this thread's vectors
    const int64_t pixels = cut_.shape.c * cut_.shape.s;
    walk_rows<kUnroll>(row * pixels + begin_, cut_.next, count, static_cast<int>(threadIdx.x), step(), body);
  }

  template <class Body>
  __device__ __forceinline__ void edges(int, int, const Body&) const {}

 protected:
  // Of the thread's vectors, counted within a row.
  __device__ __forceinline__ int first_value() const {
    return (static_cast<int>(threadIdx.x) - within() * cut_.wide) * V;
  }

 private:
  // The thread's row, of those that the block reads at once.
  __device__ __forceinline__ int within() const { return cut_.by_wide.divide(static_cast<int>(threadIdx.x)); }

  const Cut& cut_;
  int64_t begin_;
};

/// A panel is a strip. A thread treats each of its values in a row as a channel: kChannels and
/// first_channel() count positions of the row, of which kPlaces is the most.
template <class S, int V, int kThreads>
class Strips : public ImageRows<V, kThreads> {
 public:
  static constexpr bool kStrips = true;
  static constexpr int kChannels = V;
  static constexpr int kPanelChannels = kMostStripChannels;
  static constexpr int kPlaces = kMostStrip * V;

  using ImageRows<V, kThreads>::ImageRows;

  __device__ __forceinline__ static int panel_channels(const Cut& cut) { return cut.channels; }
  __device__ __forceinline__ int first_channel() const { return this->first_value(); }
};

/// A panel is one channel, whose planes consist of whole vectors, at most as many as the block has threads:
/// Planes with fewer instructions.
template <class S, int V, int kThreads>
class AlignedPlanes : public ImageRows<V, kThreads> {
 public:
  static constexpr bool kStrips = false;
  static constexpr int kChannels = 1, kPanelChannels = 1, kPlaces = 1;

  using ImageRows<V, kThreads>::ImageRows;

  __device__ __forceinline__ static int panel_channels(const Cut&) { return 1; }
  __device__ __forceinline__ int first_channel() const { return 0; }
};

/// The bytes that sum_strip needs for kSums sums of T.
template <class T, int kSums>
int strip_sum_bytes(const Cut& cut) {
  return cut.rows * (cut.wide + cut.channels - 1) * kSums * static_cast<int>(sizeof(T));
}

/// Adds up the sums of a block's threads, each with kSums sums per value of its vectors. Thread j <
/// cut.channels gets the sums of the panel's channel j; those of the other threads are undefined. `parts` is
/// shared memory for strip_sum_bytes(). A thread adds in T, everything above in f64, in a fixed order. All
/// threads of the block call it. Two barriers; `parts` may be written after it.
template <class Walk, int kSums, class T>
__device__ __forceinline__ void sum_strip(const Cut& cut, const T (&own)[kSums][Walk::kVector], T* parts,
                                          double (&sums)[kSums]) {
  constexpr int V = Walk::kVector, kWarps = Walk::kBlockThreads / kWarp;
  const int pixels = static_cast<int>(cut.shape.s), rows = cut.rows;
  // A row has a part for each channel of each vector, in order: the parts of a channel are contiguous.
  const int row_parts = cut.wide + cut.channels - 1;
  const StripPlace<V> at(cut);
  if (at.row < rows) {
    T* const of_first = parts + (at.row * row_parts + at.column + at.channel) * kSums;
    PALIMPSEST_UNROLL
    for (int s = 0; s < kSums; ++s) {
      T first = 0, second = 0;
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; ++i) {
        if (i < at.split)
          first += own[s][i];
        else
          second += own[s][i];
      }
      of_first[s] = first;
      if (at.split < V) of_first[kSums + s] = second;
    }
  }
  __syncthreads();
  PALIMPSEST_SHARED(of_channels, double[Walk::kPanelChannels][kSums]);
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  for (int c = warp; c < cut.channels; c += kWarps) {
    const int first = c * pixels / V, count = ((c + 1) * pixels - 1) / V - first + 1;
    double sum[kSums] = {};
    const int rows_on = static_cast<int>(kWarp) / count, columns_on = static_cast<int>(kWarp) % count;
    for (int row = lane / count, column = lane % count; row < rows;) {
      const T* const part = parts + (row * row_parts + first + c + column) * kSums;
      PALIMPSEST_UNROLL
      for (int s = 0; s < kSums; ++s) sum[s] += static_cast<double>(part[s]);
      row += rows_on, column += columns_on;
      if (column >= count) column -= count, ++row;
    }
    PALIMPSEST_UNROLL
    for (int s = 0; s < kSums; ++s) {
      const double all = warp_sum(sum[s]);
      if (lane == 0) of_channels[c][s] = all;
    }
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < cut.channels) {
    PALIMPSEST_UNROLL
    for (int s = 0; s < kSums; ++s) sums[s] = of_channels[threadIdx.x][s];
  }
}

/// The coefficients of a panel, of a type Coefficients<T, kChannels, kPanel>: one set per channel, computed
/// by one thread each, and one per place, which threads read. Both are the same but in Strips, where the sets
/// per place lie at the beginning of the dynamic shared memory, and spread() copies the former to the latter.
template <class Walk, class T, template <class, int, int> class Coefficients>
struct WalkCoefficients {
  using Places = Coefficients<T, Walk::kChannels, Walk::kPlaces>;
  using Channels = std::conditional_t<Walk::kStrips, Coefficients<T, 1, Walk::kPanelChannels>, Places>;

  Places& places;
  Channels& channels;

  __device__ __forceinline__ static WalkCoefficients in(unsigned char* dynamic) {
    PALIMPSEST_SHARED(channels, Channels);
    if constexpr (Walk::kStrips)
      return {*reinterpret_cast<Places*>(dynamic), channels};
    else
      return {channels, channels};
  }

  /// Calls copy(place, places, channel, channels) for each place of the strip between two barriers, or waits
  /// at one barrier. All threads of the block call it after the sets per channel are written.
  template <class Copy>
  __device__ __forceinline__ void spread(const Cut& cut, const Copy& copy) const {
    __syncthreads();
    if constexpr (Walk::kStrips) {
      for (int place = static_cast<int>(threadIdx.x); place < cut.wide * Walk::kVector;
           place += Walk::kBlockThreads)
        copy(place, places, cut.by_pixels.divide(place), channels);
      __syncthreads();
    }
  }
};

}  // namespace palimpsest::kernels::cuda
