#pragma once

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/cuda/device/divisor.cuh"
#include "palimpsest/kernels/cuda/device/vector16.cuh"

#include <cstdint>

/// How the threads of a block walk through a tensor, a vector of up to 16 bytes at a time. A walk knows one
/// panel (panels.h), which consists of pieces: a piece of Planes is a vector, a piece of Columns is the
/// panel's row of one pixel, a piece of Strips (strips.cuh) the panel's row of one image. Planes have edges
/// besides: the single values of a row before its first and after its last aligned vector.
///   vectors<kUnroll>(cut, segment, body)  calls body(at, serial) until the pieces of the segment are done; `at`
///                                         has the offsets of kUnroll vectors, -1 for none, so that a body
///                                         can have kUnroll loads under way before it uses the first
///   edges(first, last, body)              calls body(at, serial) for each single value
/// `serial` numbers the vectors (or edges) of the block: of the first vector in a batch; the next ones follow
/// by step(). A thread meets the same numbers in every pass, so it finds in shared memory the values that it
/// put there in the pass before.
namespace palimpsest::kernels::cuda {

/// A tensor as one launch cuts it.
struct Cut {
  Shape3 shape;
  int panels = 0;
  int pieces = 0;    ///< per panel
  int edges = 0;     ///< per panel, Planes only: as many as the rows could have
  int segments = 1;  ///< per panel
  int lead = 0;      ///< Planes only: values from the last multiple of 16 bytes to the first value
  int wide = 1;      ///< vectors per piece: in Columns a power of two
  int channels = 0;  ///< per panel: Strips; 1: AlignedPlanes; 0: other walks
  int rows = 0;      ///< Strips, AlignedPlanes: rows that a block reads at once
  /// Strips, AlignedPlanes: values from a thread's vector to its next one. From here it takes no registers.
  int64_t next = 0;
  int scratch = 0;  ///< Strips only: bytes of dynamic shared memory before the values of the panel
  Divisor<int32_t> by_wide, by_pixels;  ///< Strips, AlignedPlanes

  __host__ __device__ int first_piece(int segment) const { return share(pieces, segment); }
  __host__ __device__ int pieces_of(int segment) const {
    return first_piece(segment + 1) - first_piece(segment);
  }
  /// The pieces of a segment if the segments take `rows` pieces at once in turn.
  __host__ __device__ int pieces_in_turn(int segment, int rows) const {
    const int turn = segments * rows, rest = pieces % turn - segment * rows;
    return pieces / turn * rows + (rest < 0 ? 0 : rest < rows ? rest : rows);
  }
  __host__ __device__ int first_edge(int segment) const { return share(edges, segment); }
  /// The most that a segment has.
  __host__ __device__ int most_vectors() const { return (pieces + segments - 1) / segments * wide; }
  __host__ __device__ int most_edges() const { return (edges + segments - 1) / segments; }

 private:
  __host__ __device__ int share(int count, int segment) const {
    return static_cast<int>(int64_t{count} * segment / segments);
  }
};

/// Calls body(at, serial) as above for `count` vectors of a thread: the first at `next` with number `serial`,
/// the others `step` values and `serial_step` numbers further each.
template <int kUnroll, class Body>
__device__ __forceinline__ void walk_rows(int64_t next, int64_t step, int count, int serial, int serial_step,
                                          const Body& body) {
  int64_t at[kUnroll];
  // First the vectors that make no whole batch, then batches in a loop without comparisons.
  if constexpr (kUnroll > 1)
    if (const int few = count % kUnroll; few > 0) {
      PALIMPSEST_UNROLL
      for (int u = 0; u < kUnroll; ++u) at[u] = u < few ? next + u * step : -1;
      body(at, serial);
      serial += few * serial_step;
      next += few * step;
    }
  for (int batches = count / kUnroll; batches > 0; --batches) {
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      at[u] = next + u * step;
      PALIMPSEST_ASSUME(at[u] >= 0);
    }
    body(at, serial);
    serial += kUnroll * serial_step;
    next += kUnroll * step;
  }
}

/// For the same batches as walk_rows calls start(at, slot) and, kSlots - 1 batches later, first(slot, vectors) for the
/// first batch and work(slot) for the others, which are whole. The copies that start() begins are under way until then.
template <int kUnroll, int kSlots, class Start, class First, class Work>
__device__ __forceinline__ void walk_rows_ahead(int64_t next, int64_t step, int count, const Start& start,
                                                const First& first, const Work& work) {
  const int few = count % kUnroll > 0 ? count % kUnroll : kUnroll;
  int left = (count + kUnroll - 1) / kUnroll, to_start = left, free_slot = 0, slot = 0;
  const auto after = [](int of) { return of == kSlots - 1 ? 0 : of + 1; };
  const auto start_batch = [&](int vectors) {
    if (to_start > 0) {
      int64_t at[kUnroll];
      PALIMPSEST_UNROLL
      for (int u = 0; u < kUnroll; ++u) at[u] = u < vectors ? next + u * step : -1;
      start(at, free_slot);
      next += vectors * step;
      --to_start;
    }
    commit_copies();  // a group for each batch, empty at the end
    free_slot = after(free_slot);
  };
  start_batch(few);
  PALIMPSEST_NO_UNROLL
  for (int s = 1; s < kSlots; ++s) start_batch(kUnroll);
  wait_for_copies_but<kSlots - 1>();
  first(slot, few);
  while (--left > 0) {
    start_batch(kUnroll);  // in the slot of the batch before
    wait_for_copies_but<kSlots - 1>();
    work(slot = after(slot));
  }
}

/// NCHW: a panel is one channel. Its rows are the images, S values each, which may begin at any value. The
/// aligned vectors of a row are pieces; up to V - 1 values before the first and after the last vector are
/// edges.
template <class S, int V, int kThreads>
class Planes {
 public:
  static constexpr int kBlockThreads = kThreads;
  static constexpr int kVector = V;
  static constexpr bool kStrips = false, kWhole = false;
  static constexpr int kChannels = 1;         ///< per thread
  static constexpr int kPanelChannels = 1;    ///< per block
  static constexpr int kPlaces = 1;           ///< for coefficients, per block
  static constexpr int kEdges = 2 * (V - 1);  ///< per row, at most

  __device__ __forceinline__ Planes(const Cut& cut, int panel)
      : pixels_(static_cast<int>(cut.shape.s)),
        lead_(cut.lead),
        row_(cut.shape.c * cut.shape.s),
        begin_(panel * cut.shape.s) {}

  /// The channels of each panel.
  __device__ __forceinline__ static int panel_channels(const Cut&) { return 1; }

  __device__ __forceinline__ static constexpr int step() { return kThreads; }

  /// The first of this thread's channels, counted within the panel.
  __device__ __forceinline__ int first_channel() const { return 0; }

  template <int kUnroll, class Body>
  __device__ __forceinline__ void vectors(const Cut& cut, int segment, const Body& body) const {
    const int first = cut.first_piece(segment), last = cut.first_piece(segment + 1);
    // Vectors are numbered as if each row had so many. A row that begins off 16 bytes has one less.
    const int per_row = pixels_ / V;
    if (per_row == 0) return;
    const int row = (first + static_cast<int>(threadIdx.x)) / per_row;
    int vector = (first + static_cast<int>(threadIdx.x)) % per_row;
    const int rest = kThreads % per_row;
    const int64_t rows = kThreads / per_row * row_;  // to the row after kThreads vectors
    int64_t begin = begin_ + row * row_;
    for (int left = last - first - static_cast<int>(threadIdx.x); left > 0; left -= kUnroll * kThreads) {
      int64_t at[kUnroll];
      PALIMPSEST_UNROLL
      for (int u = 0; u < kUnroll; ++u) {
        const int within = head(begin) + vector * V;
        const bool is_there = u * kThreads < left && within + V <= pixels_;
        at[u] = is_there ? begin + within : -1;
        begin += rows, vector += rest;
        if (vector >= per_row) vector -= per_row, begin += row_;
      }
      body(at, last - first - left);
    }
  }

  // Edges are numbered as if each row had kEdges of them.
  template <class Body>
  __device__ __forceinline__ void edges(int first, int last, const Body& body) const {
    if constexpr (V > 1)
      for (int edge = first + static_cast<int>(threadIdx.x); edge < last; edge += kThreads) {
        const int64_t at = edge_at(edge / kEdges, edge % kEdges);
        if (at >= 0) body(at, edge - first);
      }
  }

 private:
  // Values of a row before its first aligned vector.
  __device__ __forceinline__ int head(int64_t row_begin) const {
    return -(static_cast<int>(row_begin) + lead_) & (V - 1);
  }

  __device__ __forceinline__ int64_t edge_at(int row, int edge) const {
    const int64_t begin = begin_ + row * row_;
    const int before = head(begin) < pixels_ ? head(begin) : pixels_, after = (pixels_ - before) & (V - 1);
    if (edge < V - 1) return edge < before ? begin + edge : -1;
    return edge - (V - 1) < after ? begin + (pixels_ - after + (edge - (V - 1))) : -1;
  }

  int pixels_, lead_;
  int64_t row_, begin_;
};

/// Channels-last: a panel is cut.wide vectors of neighbouring channels, at most kMostWide, and its rows are
/// the pixels. A thread has the same channels in all rows.
template <class S, int V, int kThreads, int kMostWide>
class Columns {
 public:
  static constexpr int kBlockThreads = kThreads;
  static constexpr int kVector = V;
  static constexpr int kChannels = V;
  static constexpr bool kStrips = false, kWhole = false;
  static constexpr int kPanelChannels = kMostWide * V;  ///< at most
  static constexpr int kPlaces = kPanelChannels;

  __device__ __forceinline__ Columns(const Cut& cut, int panel)
      : channels_(static_cast<int>(cut.shape.c)), wide_(cut.wide) {
    column_ = panel * wide_ * V + first_channel();
  }

  __device__ __forceinline__ static int panel_channels(const Cut& cut) { return cut.wide * V; }

  __device__ __forceinline__ static constexpr int step() { return kThreads; }

  __device__ __forceinline__ int first_channel() const {
    return (static_cast<int>(threadIdx.x) & (wide_ - 1)) * V;
  }

  template <int kUnroll, class Body>
  __device__ __forceinline__ void vectors(const Cut& cut, int segment, const Body& body) const {
    const int rows = kThreads / wide_;  // that the block reads at once
    with_rows(cut.first_piece(segment), cut.first_piece(segment + 1), rows,
              [&](int64_t next, int64_t step, int count) {
                walk_rows<kUnroll>(next, step, count, static_cast<int>(threadIdx.x), kThreads, body);
              });
  }

  /// walk_rows_ahead for a segment. The segments take the rows in turn, from the last to the first: their blocks run at the
  /// same time, and so they read neighbouring memory; the end of a tensor that was just written is still in the L2 cache.
  template <int kUnroll, int kSlots, class Start, class First, class Work>
  __device__ __forceinline__ void vectors_ahead(const Cut& cut, int segment, const Start& start,
                                                const First& first, const Work& work) const {
    const int rows = kThreads / wide_;
    with_rows(segment * rows, cut.pieces, cut.segments * rows, [&](int64_t at, int64_t step, int count) {
      walk_rows_ahead<kUnroll, kSlots>(at + (count - 1) * step, -step, count, start, first, work);
    });
  }

  template <class Body>
  __device__ __forceinline__ void edges(int, int, const Body&) const {}

 private:
  // Calls function(at, step, count) for the thread's vectors in pieces [first, last), which lie `step` pieces apart: the
  // offset of the first one, the values from one to the next, and how many there are.
  template <class Function>
  __device__ __forceinline__ void with_rows(int first, int last, int step, const Function& function) const {
    const int row = first + static_cast<int>(threadIdx.x) / wide_;
    if (column_ < channels_ && row < last)
      function(int64_t{row} * channels_ + column_, int64_t{step} * channels_, (last - row - 1) / step + 1);
  }

  int channels_, wide_, column_;
};

}  // namespace palimpsest::kernels::cuda
