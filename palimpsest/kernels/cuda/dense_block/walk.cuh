#pragma once

#include "palimpsest/kernels/cuda/device/vector16.cuh"

#include <cstdint>

/// How the threads of a block walk through the first c channels of a block's buffer and, in step, through a
/// contiguous tensor of these channels alone: device/walk.cuh for two tensors. A vector lies within one row
/// (a plane's pixels, or a pixel's channels), and the rows of both tensors begin at multiples of 16 bytes;
/// else V is 1.
namespace palimpsest::kernels::cuda::dense_block_detail {

/// c channels of a buffer of `total`, as one launch cuts them; the rest as in Cut.
struct BufferCut {
  int64_t c = 0, total = 0, s = 0;
  int panels = 0, pieces = 0, segments = 1;

  __host__ __device__ int first_piece(int segment) const {
    return static_cast<int>(int64_t{pieces} * segment / segments);
  }
};

/// The two offsets of a vector.
struct BufferPlace {
  int64_t wide;  ///< in the buffer, from the first of the c channels on; -1: there is no vector
  int64_t own;   ///< in the tensor of c channels
};

/// NCHW: a panel is one channel, and a piece is a vector of one image's plane.
template <class S, int V, int kThreads>
class BufferPlanes {
 public:
  static constexpr int kBlockThreads = kThreads, kVector = V, kChannels = 1, kPanelChannels = 1;

  __device__ __forceinline__ BufferPlanes(const BufferCut& cut, int panel)
      : per_row_(static_cast<int>(cut.s / V)),
        wide_row_(cut.total * cut.s),
        own_row_(cut.c * cut.s),
        begin_(panel * cut.s) {}

  __device__ __forceinline__ int first_channel() const { return 0; }

  /// Calls body(places of kUnroll vectors) until pieces [first, last) are done.
  template <int kUnroll, class Body>
  __device__ __forceinline__ void vectors(int first, int last, const Body& body) const {
    int row = (first + static_cast<int>(threadIdx.x)) / per_row_,
        vector = (first + static_cast<int>(threadIdx.x)) % per_row_;
    const int rows = kThreads / per_row_, rest = kThreads % per_row_;
    for (int i = first + static_cast<int>(threadIdx.x); i < last; i += kUnroll * kThreads) {
      BufferPlace at[kUnroll];
      PALIMPSEST_UNROLL
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t within = begin_ + int64_t{vector} * V;
        at[u] = {i + u * kThreads < last ? row * wide_row_ + within : -1, row * own_row_ + within};
        row += rows, vector += rest;
        if (vector >= per_row_) vector -= per_row_, ++row;
      }
      body(at);
    }
  }

 private:
  int per_row_;
  int64_t wide_row_, own_row_, begin_;
};

/// Channels-last: a panel is kWide vectors of neighbouring channels, and a piece is the panel's row of one
/// pixel.
template <class S, int V, int kThreads, int kWide>
class BufferColumns {
 public:
  static constexpr int kBlockThreads = kThreads, kVector = V, kChannels = V, kPanelChannels = kWide * V;
  static constexpr int kRows = kThreads / kWide;  ///< that the block reads at once

  __device__ __forceinline__ BufferColumns(const BufferCut& cut, int panel)
      : c_(cut.c), total_(cut.total), column_(int64_t{panel} * kPanelChannels + first_channel()) {}

  __device__ __forceinline__ int first_channel() const { return static_cast<int>(threadIdx.x) % kWide * V; }

  template <int kUnroll, class Body>
  __device__ __forceinline__ void vectors(int first, int last, const Body& body) const {
    if (column_ >= c_) return;
    for (int r = first + static_cast<int>(threadIdx.x) / kWide; r < last; r += kUnroll * kRows) {
      BufferPlace at[kUnroll];
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

}  // namespace palimpsest::kernels::cuda::dense_block_detail
