#pragma once

// Only for units of one instruction set, as vector.h. Loops over blocks, tails included.

#include "palimpsest/kernels/cpu/simd/block.h"
#include "palimpsest/kernels/cpu/simd/storage.h"
#include "palimpsest/kernels/cpu/simd/vector.h"

#include <cstdint>

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {

// Values that one lane adds up in T before the sum continues in double. Sums of gradients cancel, so their
// runs are short; moments are taken around a pivot, where nothing cancels.
inline constexpr int64_t kGradientRun = 128;
inline constexpr int64_t kMomentRun = 512;
// 16-bit values and their squares lie on a grid: a sum that has grown loses the last bits of all of them in the same
// direction. With runs of 512, variances of bf16 were low by 2e-6.
inline constexpr int64_t kShortRun = 64;

// Rows of a plane that are shorter lie beside those of the next channels: a sweep reads these next.
inline constexpr int64_t kLongRow = 512;
inline constexpr int64_t kNeighbours = 256;

constexpr int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
constexpr int64_t larger(int64_t a, int64_t b) {
  return a < b ? b : a;
}

/// How far ahead a sum over a plane prefetches: the next channels; or, if rows are long, the next image, or one after
/// it where rows are so short that memory would not answer in time. The sums of (32, 256, 56, 56): 4.9 -> 3.0 ms; of
/// (32, 512, 28, 28) in bf16: 1.8 -> 1.4 ms. From the last rows of a block it prefetches the first rows of
/// Block::next: forward and backward of (32, 512, 28, 28) in bf16: 7.8 -> 7.1 ms.
template <class S>
class PlaneAhead {
 public:
  explicit constexpr PlaneAhead(Block block) : distance_(kNeighbours), end_(block.rows * block.stride) {
    constexpr auto kSize = static_cast<int64_t>(sizeof(S));
    constexpr int64_t kBytes = 6144;
    if (block.width < kLongRow) return;
    distance_ =
        smaller((kBytes + block.width * kSize - 1) / (block.width * kSize), block.rows) * block.stride;
    if (block.next != 0) to_next_ = block.next - end_;
  }

  /// The distance from the values of the row at this offset of the block.
  constexpr int64_t from(int64_t row) const { return distance_ + (row + distance_ < end_ ? 0 : to_next_); }

 private:
  int64_t distance_, end_;
  int64_t to_next_ = 0;  // from the rows behind the block to those of Block::next
};

// Rows of 784 values of f32, two rows ahead: the last two of 10 fetch the first two of the next channel.
static_assert(PlaneAhead<float>({10, 5000, 784, 0, 784}).from(7 * 5000) == 2 * 5000 &&
              PlaneAhead<float>({10, 5000, 784, 0, 784}).from(8 * 5000) == 784 - 8 * 5000 &&
              PlaneAhead<float>({10, 5000, 784, 0, 784}).from(9 * 5000) == 784 - 8 * 5000);
static_assert(PlaneAhead<float>({10, 5000, 784}).from(9 * 5000) == 2 * 5000);
static_assert(PlaneAhead<float>({1, 5000, 784, 0, 784}).from(0) == 784);
static_assert(PlaneAhead<float>({10, 5000, 196, 0, 196}).from(9 * 5000) == kNeighbours);

template <class V>
struct Pair {
  V a, b;
};

/// A choice that is made at compile time. A sweep takes each of its choices either as a Constant or as a
/// plain value, which is known at run time only.
template <auto kValue>
struct Constant {
  constexpr operator decltype(kValue)() const { return kValue; }
};

/// Calls function(Constant<k>{}) with the k of kValues that equals `value`.
template <auto... kValues, class Value, class Function>
PALIMPSEST_HOST_DEVICE void with_constant(Value value, const Function& function) {
  (void)((value == kValues && (function(Constant<kValues>{}), true)) || ...);
}

/// Rows to prefetch ahead in a sweep by columns: 16 KiB on their way from memory. With 4 KiB of bf16, statistics of
/// (32, 512, 28, 28) took 0.83 ms, now 0.62.
template <class S>
constexpr int64_t rows_ahead(Block block) {
  constexpr auto kValues = static_cast<int64_t>(16384 / sizeof(S));
  return (kValues + block.width - 1) / block.width;
}

/// Returns how far ahead the second sweep over a block prefetches. Columns are read from memory again. A
/// strip is still in cache; the next strip, whose rows follow, is not. 7x7: 2.5 -> 2.2 ms.
template <class S>
constexpr int64_t values_ahead(Block block) {
  return block.plane > 0 ? block.width : rows_ahead<S>(block) * block.stride;
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
      function(Block{smaller(rows, block.rows - row), block.stride, end - begin, block.plane, block.next},
               row * block.stride + begin);
    }
  }
}

/// Calls function(chunk, offset) for pieces of rows_per_sum rows.
template <class S, class Function>
PALIMPSEST_HOST_DEVICE void for_column_chunks(Block block, const Function& function) {
  const int64_t rows = rows_per_sum<S>(block.rows);
  for (int64_t row = 0; row < block.rows; row += rows)
    function(Block{smaller(rows, block.rows - row), block.stride, block.width, block.plane, block.next},
             row * block.stride);
}

/// Calls write(i, streaming, result...) for every step of the block, with the Result of read(place, result) for each
/// vector of the step at offset i. `streaming`, as `stores` asks for, is true only where out + i lies on a step's
/// boundary. The vectors at the ends of a row, where no whole step fits, are written alone and overlap their
/// neighbours: they are read before the row is written and write the same values, so that input and output may be the
/// same memory.
///
/// The vectors written alone, in Order::kHalves, lie in the first two or the last two vectors of a row.
/// kFromEven: whole steps in Order::kAlternate begin at even columns; a row whose boundaries lie at odd ones is not
/// streamed.
///
/// `read` takes its result by reference: gcc moves a struct of vectors that a function returns 8 bytes at a time. In
/// bf16 at 14x14 pixels that was a quarter of the sweep.
template <Order kOrder, class V, class Result, bool kFromEven = false, class S, class Read, class Write>
PALIMPSEST_HOST_DEVICE void map_rows(Block block, const S* out, Stores stores, const Read& read,
                                     const Write& write) {
  constexpr int kVectors = kVectorsPerStep<S, V>;
  constexpr int64_t kLanes = lanes<accumulate_t<S>, V>(), kStep = kVectors * kLanes;
  constexpr auto kSize = static_cast<int64_t>(sizeof(S));
  const int64_t width = block.width, last = width - kStep;
  Result at_end[2 * kVectors]{};
  int64_t first = 0, ends = 0, end_columns[2 * kVectors]{};
  // Whole steps begin at column `first`. One copy of read and write serves both ends of a row: a few hundred sweeps
  // hold such copies.
  const auto begin_steps_at = [&](int64_t column) PALIMPSEST_INLINE_LAMBDA {
    first = column;
    const int64_t before = (first + kLanes - 1) / kLanes;
    ends = before + ((width - first) % kStep + kLanes - 1) / kLanes;
#pragma GCC unroll 1
    for (int64_t e = 0; e < ends; ++e)
      end_columns[e] =
          e < before ? smaller(e * kLanes, width - kLanes) : larger(width - (ends - e) * kLanes, 0);
  };
  begin_steps_at(0);
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t at = row * block.stride;
    bool streaming = false;
    if (stores == Stores::kStreaming) {
      const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out + at) % (kStep * kSize));
      const int64_t to_boundary = past == 0 ? 0 : kStep - past / kSize;
      streaming = past % kSize == 0 && to_boundary + kStep <= width &&
                  !(kFromEven && kOrder == Order::kAlternate && to_boundary % 2 != 0);
      begin_steps_at(streaming ? to_boundary : 0);
    }
#pragma GCC unroll 1
    for (int64_t e = 0; e < ends; ++e)
      read(Place<Order::kHalves, 0>{at + end_columns[e], end_columns[e]}, at_end[e]);
    // Compiled for both: the test of each step was a tenth of the instructions of a backward sweep.
    const auto steps = [&](auto streams) PALIMPSEST_INLINE_LAMBDA {
      for (int64_t j = first; j <= last; j += kStep) {
        Result result[kVectors]{};
        if constexpr (kVectors == 2) {
          read(Place<kOrder, 0>{at + j, j}, result[0]);
          read(Place<kOrder, 1>{at + j, j}, result[1]);
          write(at + j, streams, result[0], result[1]);
        } else {
          read(Place<Order::kHalves, 0>{at + j, j}, result[0]);
          write(at + j, streams, result[0]);
        }
      }
    };
    with_constant<false, true>(streaming, steps);
#pragma GCC unroll 1
    for (int64_t e = 0; e < ends; ++e) write(at + end_columns[e], false, at_end[e]);
  }
}

/// Calls prefetch(i) for each cache line of `values` values of S from offset i on.
template <class S, class Prefetch>
PALIMPSEST_HOST_DEVICE void prefetch_lines(int64_t i, int64_t values, const Prefetch& prefetch) {
  constexpr int64_t kLine = kLineBytes / sizeof(S);
  for (int64_t from = 0; from < values; from += kLine) prefetch(i + from);
}

/// The sums over the block of the pairs that read(place) returns. Calls prefetch(row, j) for value j of the row at
/// offset `row` when it is read: the processor follows one row by itself but cannot know where the next one begins
/// (PlaneAhead). kShortSums: a lane adds up about kShortRun values, and then these sums.
template <class S, class V, Order kOrder, bool kShortSums = false, class Read, class Prefetch>
PALIMPSEST_HOST_DEVICE Pair<double> sum_plane(Block block, const Read& read, const Prefetch& prefetch) {
  using T = accumulate_t<S>;
  constexpr int64_t kLanes = lanes<T, V>(), kStep = 2 * kLanes;
  const int64_t pairs = block.width - block.width % kStep;
  // At most one whole vector, then the vector that ends the row, without its lanes that were counted.
  const int64_t ends = (block.width - pairs + kLanes - 1) / kLanes;
  int64_t end_columns[2]{};
  decltype(all_but_first<T, V>(0)) uncounted[2]{};
#pragma GCC unroll 1
  for (int64_t e = 0; e < ends; ++e) {
    const int64_t j = pairs + e * kLanes, counted = larger(j + kLanes - block.width, 0);
    end_columns[e] = j - counted;
    uncounted[e] = all_but_first<T, V>(counted);
  }
  Pair<V> even{}, odd{};  // two chains: a single one would wait for its own additions
  Pair<V> earlier{};
  int64_t left = kShortRun * kStep;  // before the sums are added to `earlier`, if kShortSums
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t at = row * block.stride;
    const auto fetch = [&](int64_t j) PALIMPSEST_INLINE_LAMBDA { prefetch(at, j); };
    int64_t j = 0;
    do {
      if (kShortSums && left <= 0) {
        earlier.a += even.a + odd.a;
        earlier.b += even.b + odd.b;
        even = odd = Pair<V>{};
        left = kShortRun * kStep;
      }
      const int64_t end = kShortSums ? smaller(pairs, j + left) : pairs;
      left -= end - j;
      for (; j < end; j += kStep) {
        prefetch_lines<S>(j, kStep, fetch);
        const Pair<V> p = read(Place<kOrder, 0>{at + j, j}), q = read(Place<kOrder, 1>{at + j, j});
        even.a += p.a;
        even.b += p.b;
        odd.a += q.a;
        odd.b += q.b;
      }
    } while (j < pairs);
#pragma GCC unroll 1
    for (int64_t e = 0; e < ends; ++e) {
      fetch(end_columns[e]);
      const Pair<V> p = read(Place<Order::kHalves, 0>{at + end_columns[e], end_columns[e]});
      odd.a += keep_if<T>(uncounted[e], p.a);
      odd.b += keep_if<T>(uncounted[e], p.b);
    }
    left -= ends * kStep;
  }
  if constexpr (kShortSums) even.a += earlier.a, even.b += earlier.b;
  return {sum<T>(even.a) + sum<T>(odd.a), sum<T>(even.b) + sum<T>(odd.b)};
}

namespace {

// Out of line: it is the same for every activation, and would be compiled a few dozen times.
template <class T>
__attribute__((noinline)) void clear_columns(int64_t count, T* a, T* b) {
  for (int64_t j = 0; j < count; ++j) a[j] = b[j] = 0;
}

}  // namespace

/// Writes the values of even columns to `even` and those of odd ones to `odd`.
template <class T>
PALIMPSEST_HOST_DEVICE void by_parity(int64_t width, const T* values, T* even, T* odd) {
  using V = Vector<T>;
  constexpr int64_t kLanes = lanes<T, V>();
  int64_t j = 0;
  for (; j + 2 * kLanes <= width; j += 2 * kLanes) {
    const V a = load<V>(values + j), b = load<V>(values + j + kLanes);
    store(even + j / 2, every_other<0>(a, b));
    store(odd + j / 2, every_other<1>(a, b));
  }
  for (; j < width; ++j) (j % 2 == 0 ? even : odd)[j / 2] = values[j];
}

/// Puts values that lie in steps of two vectors in Order::kAlternate into the order of the columns. `width` is a whole
/// number of steps.
template <class V, class T>
PALIMPSEST_HOST_DEVICE void order_columns(int64_t width, T* values) {
  constexpr int64_t kLanes = lanes<T, V>();
  for (int64_t j = 0; j < width; j += 2 * kLanes) {
    const V even = load<V>(values + j), odd = load<V>(values + j + kLanes);
    store(values + j, interleave<0>(even, odd));
    store(values + j + kLanes, interleave<1>(even, odd));
  }
}

/// Computes sum_a[j], sum_b[j] = the sums over the rows of the pairs that read(place) returns for column j. Whole steps
/// are read in kOrder, the last two vectors of a row perhaps in Order::kHalves. Calls prefetch(i) for offsets that will
/// be read soon.
template <class S, class V, Order kOrder = Order::kHalves, class Read, class Prefetch>
PALIMPSEST_HOST_DEVICE void sum_columns(Block block, accumulate_t<S>* sum_a, accumulate_t<S>* sum_b,
                                        const Read& read, const Prefetch& prefetch) {
  using T = accumulate_t<S>;
  constexpr int64_t kLanes = lanes<T, V>();
  constexpr int kVectors = kVectorsPerStep<S, V>;
  constexpr int64_t kStep = kVectors * kLanes;
  const int64_t whole = block.width - block.width % kLanes, steps = block.width - block.width % kStep;
  // The next rows must be on their way. If no other values lie between them, they are prefetched in the order of
  // memory: several rows in turn take up to 1.4 times as long on a Zen 3.
  constexpr int64_t kTogether = kRowsTogether<S>;
  const bool dense = block.stride == block.width;
  // Of a strip, so many rows ahead often lie behind the tensor. It prefetches Block::next, or with 0 the line that it
  // reads, which costs less than a test. Forward and backward of (32, 2048, 7, 7): 2.9 -> 2.4 ms.
  const int64_t ahead = block.plane > 0 ? block.next : larger(rows_ahead<S>(block), kTogether) * block.stride;
  clear_columns(block.width, sum_a, sum_b);
  for (int64_t row = 0, count; row < block.rows; row += count) {
    count = row + kTogether <= block.rows ? kTogether : row + 4 <= block.rows ? 4 : 1;
    const int64_t at = row * block.stride, next_column = dense ? count : 1;
    const auto add_up = [&]<int kCount>(Constant<kCount>, int64_t j,
                                        int64_t counted) PALIMPSEST_INLINE_LAMBDA {
      constexpr int64_t kValues = kCount * kLanes;
      constexpr Order kReadIn = kCount == 2 ? kOrder : Order::kHalves;
      const int64_t next = at + ahead + j * next_column, next_row = dense ? kValues : block.stride;
      Pair<V> first{}, second{};
      const auto add = [&](int64_t r) PALIMPSEST_INLINE_LAMBDA {
        const int64_t i = at + r * block.stride + j;
        prefetch_lines<S>(next + r * next_row, kValues, prefetch);
        const Pair<V> p = read(Place<kReadIn, 0>{i, j});
        first.a += p.a;
        first.b += p.b;
        if constexpr (kCount == 2) {
          const Pair<V> q = read(Place<kReadIn, 1>{i, j});
          second.a += q.a;
          second.b += q.b;
        }
      };
      if (kTogether == 8 && count == 8) {
        add(0), add(1), add(2), add(3), add(4), add(5), add(6), add(7);
      } else if (count == 4) {
        add(0), add(1), add(2), add(3);
      } else {
        add(0);
      }
      if (counted) {
        const auto uncounted = all_but_first<T, V>(counted);
        first = {keep_if<T>(uncounted, first.a), keep_if<T>(uncounted, first.b)};
      }
      store(sum_a + j, V(load<V>(sum_a + j) + first.a));
      store(sum_b + j, V(load<V>(sum_b + j) + first.b));
      if constexpr (kCount == 2) {
        store(sum_a + j + kLanes, V(load<V>(sum_a + j + kLanes) + second.a));
        store(sum_b + j + kLanes, V(load<V>(sum_b + j + kLanes) + second.b));
      }
    };
    int64_t j = 0;
    for (; j < steps; j += kStep) add_up(Constant<kVectors>{}, j, 0);
    for (; j < block.width; j += kLanes) {
      // The vector that ends a row repeats `counted` lanes of the vector before it: it adds 0 to sums there, which may
      // be those of other columns (Order::kAlternate).
      const int64_t counted = j < whole ? 0 : j + kLanes - block.width;
      add_up(Constant<1>{}, j - counted, counted);
    }
  }
  if constexpr (kOrder == Order::kAlternate && kVectors == 2) {
    order_columns<V>(steps, sum_a);
    order_columns<V>(steps, sum_b);
  }
}

namespace {

// Out of line, like clear_columns.

/// of_channel[c] = the sums of the columns of channel c of a strip.
template <class T>
__attribute__((noinline)) void add_up_columns(Block block, const T* sum_a, const T* sum_b,
                                              Pair<double>* of_channel) {
  with_lanes<T>(block.plane, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
    for (int64_t c = 0, at = 0; at < block.width; ++c, at += block.plane) {
      const auto read = [&](auto place) PALIMPSEST_INLINE_LAMBDA {
        return Pair<V>{load_at<V>(sum_a + at, place), load_at<V>(sum_b + at, place)};
      };
      of_channel[c] =
          sum_plane<T, V, Order::kHalves>(Block{1, block.plane, block.plane}, read, [](int64_t, int64_t) {});
    }
  });
}

/// Adds the sums of columns to those of their channels.
template <class T>
__attribute__((noinline)) void add_to_channels(Block block, const T* sum_a, const T* sum_b, double* a,
                                               double* b) {
  if (block.plane == 0) {
    for (int64_t j = 0; j < block.width; ++j) {
      a[j] += static_cast<double>(sum_a[j]);
      b[j] += static_cast<double>(sum_b[j]);
    }
    return;
  }
  Pair<double> of_channel[kMaxColumns];
  add_up_columns(block, sum_a, sum_b, of_channel);
  for (int64_t c = 0; c < block.width / block.plane; ++c) {
    a[c] += of_channel[c].a;
    b[c] += of_channel[c].b;
  }
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
