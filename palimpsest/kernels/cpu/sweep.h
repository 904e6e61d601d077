#pragma once

// As vector.h: only for units that are compiled once per instruction set. The loops over blocks, with the
// tails.

#include "palimpsest/kernels/cpu/abn_kernels.h"
#include "palimpsest/kernels/cpu/vector.h"

#include <cstdint>

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {

#define PALIMPSEST_INLINE_LAMBDA __attribute__((always_inline))

// Values that one lane sums up in T before the sum goes on in double. Sums of gradients cancel, so theirs are
// short; moments are taken around a pivot, where nothing does.
inline constexpr int64_t kGradientRun = 128;
inline constexpr int64_t kMomentRun = 512;
inline constexpr int64_t kColumnRun = 128;

// Where a plane's sweep will read next: in the next image; or, of small images, in the channels that come
// next, whose rows follow this one. 56x56: 4.9 -> 3.0 ms.
inline constexpr int64_t kLongRow = 512;
inline constexpr int64_t kNeighbours = 256;

template <class V>
struct Pair {
  V a, b;
};

template <auto kValue>
struct Constant {};

/// Rows of columns that cover what is on its way from memory: 8 KiB of f32.
constexpr int64_t rows_ahead(Block block) {
  return (2048 + block.width - 1) / block.width;
}

/// How far ahead a sweep from values to values reads memory. Columns come from there once more. A strip is in
/// cache by then, while the next one, whose rows follow this one's, is not: 7x7: 2.5 -> 2.2 ms.
constexpr int64_t values_ahead(Block block) {
  return block.plane > 0 ? block.width : rows_ahead(block) * block.stride;
}

constexpr int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/// Calls function(V{}) with the vector type, or with T itself where a row is shorter than one vector.
template <class T, class Function>
PALIMPSEST_HOST_DEVICE void with_lanes(int64_t width, const Function& function) {
  if (width >= lanes<T, Vector<T>>())
    function(Vector<T>{});
  else
    function(T{});
}

/// Calls function(chunk, offset) for pieces of at most `most` values: some whole rows, or a part of one.
template <class Function>
PALIMPSEST_HOST_DEVICE void for_plane_chunks(Block block, int64_t most, const Function& function) {
  const int64_t pieces = (block.width + most - 1) / most;
  const int64_t rows = pieces > 1 ? 1 : most / block.width;
  for (int64_t row = 0; row < block.rows; row += rows) {
    for (int64_t piece = 0; piece < pieces; ++piece) {
      // Equal pieces, so that none is shorter than a vector.
      const int64_t begin = block.width * piece / pieces, end = block.width * (piece + 1) / pieces;
      function(Block{smaller(rows, block.rows - row), block.stride, end - begin}, row * block.stride + begin);
    }
  }
}

/// Calls function(chunk, offset) for pieces of at most kColumnRun rows.
template <class Function>
PALIMPSEST_HOST_DEVICE void for_column_chunks(Block block, const Function& function) {
  for (int64_t row = 0; row < block.rows; row += kColumnRun)
    function(Block{smaller(kColumnRun, block.rows - row), block.stride, block.width, block.plane},
             row * block.stride);
}

/// write(i, read(i, j), aligned) for every vector of the block, at offset i, column j; `aligned` says that
/// out + i lies on a vector's boundary. The vectors at both ends of a row overlap their neighbours where the
/// row is no whole number of aligned vectors; they are read before anything of that row is written, and what
/// they write is the same: input and output may be the same memory.
template <int64_t kLanes, class T, class Read, class Write>
PALIMPSEST_HOST_DEVICE void map_rows(Block block, const T* out, const Read& read, const Write& write) {
  const int64_t last = block.width - kLanes;
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t at = row * block.stride;
    const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out + at) % (kLanes * sizeof(T)));
    const bool aligned = past % static_cast<int64_t>(sizeof(T)) == 0;
    const int64_t first = past == 0 || !aligned ? 0 : kLanes - past / static_cast<int64_t>(sizeof(T));
    if (first == 0 && block.width % kLanes == 0) {
      for (int64_t j = 0; j <= last; j += kLanes) write(at + j, read(at + j, j), aligned);
    } else {
      const auto begin = read(at, 0), end = read(at + last, last);
      for (int64_t j = first; j <= last; j += kLanes) write(at + j, read(at + j, j), aligned);
      write(at, begin, false);
      write(at + last, end, false);
    }
  }
}

/// The sums over the block of the pairs that read(i) gives for the vector at offset i; prefetch(i) is told
/// where the sweep will read soon. The processor follows one row by itself but cannot know where the next one
/// begins.
template <class T, class V, class Read, class Prefetch>
PALIMPSEST_HOST_DEVICE Pair<double> sum_plane(Block block, const Read& read, const Prefetch& prefetch) {
  const int64_t ahead = block.width < kLongRow ? kNeighbours : block.stride;
  constexpr int64_t kLanes = lanes<T, V>();
  const int64_t pairs = block.width - block.width % (2 * kLanes);
  Pair<V> even{}, odd{};  // two chains: one alone would wait for its own additions
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t at = row * block.stride;
    for (int64_t j = 0; j < pairs; j += 2 * kLanes) {
      prefetch(at + j + ahead);
      prefetch(at + j + kLanes + ahead);
      const Pair<V> p = read(at + j), q = read(at + j + kLanes);
      even.a += p.a;
      even.b += p.b;
      odd.a += q.a;
      odd.b += q.b;
    }
    int64_t rest = block.width - pairs;
    if (rest >= kLanes) {
      prefetch(at + pairs + ahead);
      const Pair<V> p = read(at + pairs);
      even.a += p.a;
      even.b += p.b;
      rest -= kLanes;
    }
    if (rest > 0) {  // the vector that ends the row, without the lanes that were counted already
      const Pair<V> q = read(at + block.width - kLanes);
      odd.a += without_first<T>(q.a, kLanes - rest);
      odd.b += without_first<T>(q.b, kLanes - rest);
    }
  }
  return {sum<T>(even.a) + sum<T>(odd.a), sum<T>(even.b) + sum<T>(odd.b)};
}

/// sum_a[j], sum_b[j] = the sums over the rows of the pairs that read(i, j) gives for the vector at offset i,
/// column j; prefetch(i) is told where the sweep will read soon.
template <class T, class V, class Read, class Prefetch>
PALIMPSEST_HOST_DEVICE void sum_columns(Block block, T* sum_a, T* sum_b, const Read& read,
                                        const Prefetch& prefetch) {
  constexpr int64_t kLanes = lanes<T, V>();
  constexpr int64_t kFewVectors = 8;
  const int64_t whole = block.width - block.width % kLanes;
  const int64_t ahead = rows_ahead(block) * block.stride;
  for (int64_t j = 0; j < block.width; ++j) sum_a[j] = sum_b[j] = 0;
  const auto add_rows = [&]<int64_t kCount>(int64_t at, Constant<kCount>) PALIMPSEST_INLINE_LAMBDA {
    const auto add = [&](int64_t j, int64_t overlap) PALIMPSEST_INLINE_LAMBDA {
      prefetch(at + ahead + j);
      Pair<V> p = read(at + j, j);
      for (int64_t r = 1; r < kCount; ++r) {
        prefetch(at + r * block.stride + ahead + j);
        const Pair<V> q = read(at + r * block.stride + j, j);
        p.a += q.a;
        p.b += q.b;
      }
      if (overlap) p = {without_first<T>(p.a, overlap), without_first<T>(p.b, overlap)};
      store(sum_a + j, V(load<V>(sum_a + j) + p.a));
      store(sum_b + j, V(load<V>(sum_b + j) + p.b));
    };
    for (int64_t j = 0; j < whole; j += kLanes) add(j, int64_t{0});
    if (whole < block.width) add(block.width - kLanes, whole + kLanes - block.width);
  };
  int64_t row = 0;
  // Memory is read in order, one row after the other, unless a row is so short that its sums would be needed
  // again before they are stored: then 4 at a time.
  if (block.width < kFewVectors * kLanes)
    for (; row + 4 <= block.rows; row += 4) add_rows(row * block.stride, Constant<int64_t{4}>{});
  for (; row < block.rows; ++row) add_rows(row * block.stride, Constant<int64_t{1}>{});
}

/// function(channel, sums) for every channel of a strip, from the sums of its columns.
template <class T, class Function>
PALIMPSEST_HOST_DEVICE void add_up_columns(Block block, const T* sum_a, const T* sum_b,
                                           const Function& function) {
  with_lanes<T>(block.plane, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
    for (int64_t c = 0, at = 0; at < block.width; ++c, at += block.plane) {
      const auto read = [&](int64_t i) PALIMPSEST_INLINE_LAMBDA {
        return Pair<V>{load<V>(sum_a + at + i), load<V>(sum_b + at + i)};
      };
      function(c, sum_plane<T, V>(Block{1, block.plane, block.plane}, read, [](int64_t) {}));
    }
  });
}

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
