#pragma once

// Only for units of one instruction set, as simd/vector.h.

#include "palimpsest/kernels/cpu/abn/arguments.h"
#include "palimpsest/kernels/cpu/abn/table.h"
#include "palimpsest/kernels/cpu/simd/loops.h"
#include "palimpsest/kernels/cpu/simd/storage.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn {
namespace {

constexpr int64_t kPivotSamples = 8;

// Adds `count` values to the `before` values that mean and squares describe (Chan, Golub, LeVeque).
PALIMPSEST_HOST_DEVICE void merge(double before, double count, double new_mean, double new_squares,
                                  double& mean, double& squares) {
  const double share = count / (before + count);
  const double delta = new_mean - mean;
  mean += delta * share;
  squares += new_squares + delta * delta * before * share;
}

// Sums around a pivot lose digits when the pivot lies far from the mean. Beyond 3 standard deviations, where
// one digit is lost, the sums are repeated around a better pivot.
PALIMPSEST_HOST_DEVICE bool is_far(double count, double sum, double squares) {
  // between > 8 * (squares - between) for between = sum * sum / count. A division per column would take as long as 5
  // rows.
  return 9 * sum * sum > 8 * squares * count;
}

PALIMPSEST_HOST_DEVICE void merge_shifted(double before, double count, double pivot, double sum,
                                          double squares, double& mean, double& squared_deviations) {
  const double offset = sum / count;
  const double around_mean = squares - sum * offset;
  merge(before, count, pivot + offset, around_mean < 0 ? 0 : around_mean, mean, squared_deviations);
}

// A pivot is a value of S: in 16 bits the differences to it are exact, and so are most of their sums. The last bits of
// another f32 value would be lost from every sum in the same direction: f16 means were off by 2e-6 of a deviation.
template <class S, class T = accumulate_t<S>>
__attribute__((noinline)) Pair<double> plane_shifted_sums(Block chunk, int64_t at, PlaneAhead<S> ahead,
                                                          const S* x, T pivot) {
  Pair<double> sums{};
  with_lanes<T>(chunk.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
    sums = sum_plane<S, V, kAnyOrder<S>, true>(
        chunk,
        [&](auto place) PALIMPSEST_INLINE_LAMBDA {
          const V d = load_at<V>(x, place.from(at)) - pivot;
          return Pair<V>{d, d * d};
        },
        [&](int64_t row, int64_t j)
            PALIMPSEST_INLINE_LAMBDA { fetch_ahead(x + at + row + j + ahead.from(at + row)); });
  });
  return sums;
}

template <class S>
void plane_moments(Block block, const S* x, double* mean, double* squares) {
  using T = accumulate_t<S>;
  const PlaneAhead<S> ahead(block);
  *mean = *squares = 0;
  double before = 0;
  for_plane_chunks(block, kMomentRun * 2 * lanes<T, Vector<T>>(), [&](Block chunk, int64_t at) {
    const int64_t samples = smaller(chunk.width, kPivotSamples);
    double sample_sum = 0;
    for (int64_t j = 0; j < samples; ++j) sample_sum += static_cast<double>(load_as<T>(x + at + j));
    const double count = static_cast<double>(chunk.rows * chunk.width);
    T pivot = as_stored<S>(static_cast<T>(sample_sum / static_cast<double>(samples)));
    Pair<double> sums = plane_shifted_sums(chunk, at, ahead, x, pivot);
    if (is_far(count, sums.a, sums.b)) {
      pivot = as_stored<S>(static_cast<T>(pivot + sums.a / count));
      sums = plane_shifted_sums(chunk, at, ahead, x, pivot);
    }
    merge_shifted(before, count, static_cast<double>(pivot), sums.a, sums.b, *mean, *squares);
    before += count;
  });
}

template <class S, class T = accumulate_t<S>>
__attribute__((noinline)) void columns_shifted_sums(Block block, const S* x, const T* pivot, T* sum,
                                                    T* squares) {
  const ColumnArgument<S> columns(block, pivot, /*is_read=*/true);
  with_lanes<T>(block.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
    const PerChannel<T, V, false> pivots(columns);
    sum_columns<S, V, kAnyOrder<S>>(
        block, sum, squares,
        [&](auto place) PALIMPSEST_INLINE_LAMBDA {
          const V d = load_at<V>(x, place) - pivots.at(place);
          return Pair<V>{d, d * d};
        },
        [&](int64_t i) PALIMPSEST_INLINE_LAMBDA { fetch_ahead(x + i); });
  });
}

/// pivot[j] = the mean of the first `samples` rows of column j, as a value of S.
template <class S, class T = accumulate_t<S>>
__attribute__((noinline)) void column_pivots(Block block, int64_t samples, const S* x, T* pivot) {
  const T share = T(1) / static_cast<T>(samples);
  with_lanes<T>(block.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
    constexpr int64_t kLanes = lanes<T, V>();
    for (int64_t next = 0; next < block.width; next += kLanes) {
      const int64_t j = smaller(next, block.width - kLanes);
      V mean{};
      for (int64_t row = 0; row < samples; ++row) mean += load_as<V>(x + row * block.stride + j) * share;
      store(pivot + j, as_stored<S>(mean));
    }
  });
}

template <class S>
void columns_moments(Block block, const S* x, double* mean, double* squares) {
  using T = accumulate_t<S>;
  alignas(kLineBytes) T pivot[kMaxColumns], sum[kMaxColumns], square[kMaxColumns];
  for (int64_t j = 0; j < block.width; ++j) mean[j] = squares[j] = 0;
  double before = 0;
  for_column_chunks<S>(block, [&](Block chunk, int64_t at) {
    const int64_t samples = smaller(chunk.rows, kPivotSamples);
    column_pivots(block, samples, x + at, pivot);
    columns_shifted_sums(chunk, x + at, pivot, sum, square);
    const double count = static_cast<double>(chunk.rows);
    int far = 0;
    for (int64_t j = 0; j < block.width; ++j) far |= is_far(count, sum[j], square[j]);
    if (far) {
      for (int64_t j = 0; j < block.width; ++j)
        pivot[j] = as_stored<S>(pivot[j] + sum[j] / static_cast<T>(count));
      columns_shifted_sums(chunk, x + at, pivot, sum, square);
    }
    for (int64_t j = 0; j < block.width; ++j)
      merge_shifted(before, count, pivot[j], sum[j], square[j], mean[j], squares[j]);
    before += count;
  });
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn
