#pragma once

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/cuda/device/vector16.cuh"

#include <cstdint>

/// How the threads of a block walk through a tensor, 16 bytes at a time. Both layouts are cut into panels
/// (one channel, or a few neighbouring ones) and a panel into pieces; a block works on some pieces of one
/// panel. Every walk calls body(at): offsets of kUnroll vectors of V values each, or -1 where there is none,
/// so that a body can have kUnroll loads under way before it uses the first. `serial` numbers the vectors of
/// the block that a thread comes to: what it put into its place of a buffer in the first sweep it finds there
/// in the second.
namespace palimpsest::kernels::cuda {

/// A tensor cut up for a launch. `pieces` is what segments of a panel are made of: vectors of a plane, or
/// rows of columns.
struct Cut {
  Shape3 shape;
  int panels = 0;
  int pieces = 0;  ///< of a panel
  int edges = 0;   ///< planes: places of single values beside the vectors, per panel
  int segments = 1;
  int lead = 0;  ///< planes: values that the first address lies behind a multiple of 16 bytes

  __host__ __device__ int first_piece(int segment) const { return share(pieces, segment); }
  __host__ __device__ int pieces_of(int segment) const {
    return first_piece(segment + 1) - first_piece(segment);
  }
  __host__ __device__ int first_edge(int segment) const { return share(edges, segment); }

 private:
  __host__ __device__ int share(int count, int segment) const {
    return static_cast<int>(int64_t{count} * segment / segments);
  }
};

/// NCHW: a panel is one channel; its rows are the images, S values each, which may begin anywhere. Of each
/// row the whole aligned vectors are taken as such; the up to V - 1 values before the first and after the
/// last one by one.
template <class S, int V, int kThreads>
class Planes {
 public:
  static constexpr int kBlockThreads = kThreads;
  static constexpr int kVector = V;
  static constexpr int kChannels = 1;         ///< that one thread works on
  static constexpr int kPanelChannels = 1;    ///< that the block works on
  static constexpr int kPanelVectors = 1;     ///< that a piece is made of
  static constexpr int kEdges = 2 * (V - 1);  ///< most single values of a row

  __device__ __forceinline__ Planes(const Cut& cut, int panel)
      : pixels_(static_cast<int>(cut.shape.s)),
        lead_(cut.lead),
        row_(cut.shape.c * cut.shape.s),
        begin_(panel * cut.shape.s) {}

  /// Where the panel has the first channel of this thread's.
  __device__ __forceinline__ int first_channel() const { return 0; }

  /// The vectors [first, last) of the panel.
  template <int kUnroll, class Body>
  __device__ __forceinline__ void vectors(int first, int last, const Body& body) const {
    const int each = pixels_ / V;  // numbered as if each row had so many, which most of them lack by one
    if (each == 0) return;
    int row = (first + static_cast<int>(threadIdx.x)) / each,
        k = (first + static_cast<int>(threadIdx.x)) % each;
    const int rows = kThreads / each, rest = kThreads % each;
    for (int serial = static_cast<int>(threadIdx.x); serial < last - first; serial += kUnroll * kThreads) {
      int64_t at[kUnroll];
      PALIMPSEST_UNROLL
      for (int u = 0; u < kUnroll; ++u) {
        at[u] = serial + u * kThreads < last - first ? vector_at(row, k) : -1;
        row += rows, k += rest;
        if (k >= each) k -= each, ++row;
      }
      body(at, serial);
    }
  }

  /// The single values [first, last) of the panel, numbered as if each row had kEdges of them.
  template <class Body>
  __device__ __forceinline__ void edges(int first, int last, const Body& body) const {
    if constexpr (V > 1)
      for (int e = first + static_cast<int>(threadIdx.x); e < last; e += kThreads) {
        const int64_t at = edge_at(e / kEdges, e % kEdges);
        if (at >= 0) body(at, e - first);
      }
  }

 private:
  // Values of a row before its first aligned one.
  __device__ __forceinline__ int head(int64_t row_begin) const {
    return -(static_cast<int>(row_begin) + lead_) & (V - 1);
  }

  __device__ __forceinline__ int64_t vector_at(int row, int k) const {
    const int64_t begin = begin_ + row * row_;
    const int at = head(begin) + k * V;
    return at + V <= pixels_ ? begin + at : -1;
  }

  __device__ __forceinline__ int64_t edge_at(int row, int e) const {
    const int64_t begin = begin_ + row * row_;
    const int before = head(begin) < pixels_ ? head(begin) : pixels_, after = (pixels_ - before) & (V - 1);
    if (e < V - 1) return e < before ? begin + e : -1;
    return e - (V - 1) < after ? begin + (pixels_ - after + (e - (V - 1))) : -1;
  }

  int pixels_, lead_;
  int64_t row_, begin_;
};

/// Channels-last: a panel is kWide vectors of neighbouring channels; its rows are the pixels. A thread keeps
/// its channels from row to row.
template <class S, int V, int kThreads, int kWide>
class Columns {
 public:
  static constexpr int kBlockThreads = kThreads;
  static constexpr int kVector = V;
  static constexpr int kChannels = V;
  static constexpr int kPanelChannels = kWide * V;
  static constexpr int kPanelVectors = kWide;
  static constexpr int kRows = kThreads / kWide;  ///< that the block takes at once

  __device__ __forceinline__ Columns(const Cut& cut, int panel)
      : channels_(static_cast<int>(cut.shape.c)), column_(panel * kPanelChannels + first_channel()) {}

  __device__ __forceinline__ int first_channel() const { return static_cast<int>(threadIdx.x) % kWide * V; }

  template <int kUnroll, class Body>
  __device__ __forceinline__ void vectors(int first, int last, const Body& body) const {
    if (column_ >= channels_) return;
    int serial = static_cast<int>(threadIdx.x);
    for (int r = first + static_cast<int>(threadIdx.x) / kWide; r < last; r += kUnroll * kRows) {
      int64_t at[kUnroll];
      PALIMPSEST_UNROLL
      for (int u = 0; u < kUnroll; ++u)
        at[u] = r + u * kRows < last ? int64_t{r + u * kRows} * channels_ + column_ : -1;
      body(at, serial);
      serial += kUnroll * kThreads;
    }
  }

  template <class Body>
  __device__ __forceinline__ void edges(int, int, const Body&) const {}

 private:
  int channels_, column_;
};

}  // namespace palimpsest::kernels::cuda
