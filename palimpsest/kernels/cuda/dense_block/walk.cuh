#pragma once

#include "palimpsest/kernels/cuda/device/vector16.cuh"

#include <cstdint>

/// How the threads of a block walk through some channels of a wide buffer and, in step, through a dense
/// tensor of these channels alone: walk.h for two tensors. A vector lies within one row (a plane's pixels, or
/// a pixel's channels), and both tensors' rows begin at multiples of it; else V is 1.
namespace palimpsest::kernels::cuda {

/// c channels of a buffer of `total`, cut up for a launch; `pieces` and `segments` as in Cut.
struct DenseCut {
  int64_t c = 0, total = 0, s = 0;
  int panels = 0, pieces = 0, segments = 1;

  __host__ __device__ int first_piece(int segment) const {
    return static_cast<int>(int64_t{pieces} * segment / segments);
  }
};

/// Offsets of one vector.
struct DensePlace {
  int64_t wide;  ///< in the buffer, from the first of the c channels on; -1: there is no vector
  int64_t own;   ///< in the tensor of c channels
};

/// NCHW: a panel is one channel, a piece is a vector of one image's plane.
template <class S, int V, int kThreads>
class DensePlanes {
 public:
  static constexpr int kBlockThreads = kThreads, kVector = V, kChannels = 1, kPanelChannels = 1;
  static constexpr int kPanelVectors = 1;

  __device__ __forceinline__ DensePlanes(const DenseCut& cut, int panel)
      : each_(static_cast<int>(cut.s / V)),
        wide_row_(cut.total * cut.s),
        own_row_(cut.c * cut.s),
        begin_(panel * cut.s) {}

  __device__ __forceinline__ int first_channel() const { return 0; }

  /// body(places of kUnroll vectors) for the pieces [first, last).
  template <int kUnroll, class Body>
  __device__ __forceinline__ void vectors(int first, int last, const Body& body) const {
    int row = (first + static_cast<int>(threadIdx.x)) / each_,
        k = (first + static_cast<int>(threadIdx.x)) % each_;
    const int rows = kThreads / each_, rest = kThreads % each_;
    for (int i = first + static_cast<int>(threadIdx.x); i < last; i += kUnroll * kThreads) {
      DensePlace at[kUnroll];
      PALIMPSEST_UNROLL
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t within = begin_ + int64_t{k} * V;
        at[u] = {i + u * kThreads < last ? row * wide_row_ + within : -1, row * own_row_ + within};
        row += rows, k += rest;
        if (k >= each_) k -= each_, ++row;
      }
      body(at);
    }
  }

 private:
  int each_;
  int64_t wide_row_, own_row_, begin_;
};

/// Channels-last: a panel is kWide vectors of neighbouring channels, a piece is a pixel.
template <class S, int V, int kThreads, int kWide>
class DenseColumns {
 public:
  static constexpr int kBlockThreads = kThreads, kVector = V, kChannels = V, kPanelChannels = kWide * V;
  static constexpr int kPanelVectors = kWide;
  static constexpr int kRows = kThreads / kWide;

  __device__ __forceinline__ DenseColumns(const DenseCut& cut, int panel)
      : c_(cut.c), total_(cut.total), column_(int64_t{panel} * kPanelChannels + first_channel()) {}

  __device__ __forceinline__ int first_channel() const { return static_cast<int>(threadIdx.x) % kWide * V; }

  template <int kUnroll, class Body>
  __device__ __forceinline__ void vectors(int first, int last, const Body& body) const {
    if (column_ >= c_) return;
    for (int r = first + static_cast<int>(threadIdx.x) / kWide; r < last; r += kUnroll * kRows) {
      DensePlace at[kUnroll];
      PALIMPSEST_UNROLL
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t row = r + u * kRows;
        at[u] = {row < last ? row * total_ + column_ : -1, row * c_ + column_};
      }
      body(at);
    }
  }

 private:
  int64_t c_, total_, column_;
};

}  // namespace palimpsest::kernels::cuda
