#pragma once

// Only for units of one instruction set, as simd/vector.h. A strip is swept like columns, row by row through
// neighbouring memory; each column has its channel's arguments, and the sums of columns are added up per
// channel at the end. A sweep plane by plane would read 196 bytes of every image for a channel of 7x7 pixels,
// from pages that all fall on the same sets of a cache.

#include "palimpsest/kernels/cpu/abn/apply.h"
#include "palimpsest/kernels/cpu/abn/gradient.h"
#include "palimpsest/kernels/cpu/abn/moments.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn {
namespace {

template <class T>
PALIMPSEST_HOST_DEVICE void fill(T* columns, int64_t count, T value) {
  for (int64_t j = 0; j < count; ++j) columns[j] = value;
}

/// Which columns' arguments a sweep reads in their order, beside those that it reads by parity (ColumnArgument).
enum class InOrder {
  kAll,
  kEnds,  ///< those of the first two and of the last two vectors of a row (map_rows, sum_columns)
};

/// A per-channel argument of a strip, repeated for each of its columns if the sweep reads it.
template <class S>
class Spread : public ColumnArgument<S> {
  using T = accumulate_t<S>;
  using Base = ColumnArgument<S>;

 public:
  PALIMPSEST_HOST_DEVICE Spread(Block block, const T* values, bool is_read, InOrder in_order)
      : Base(columns_) {
    if (!is_read) return;
    repeat<1, 0>(block, values, Base::kArranges ? in_order : InOrder::kAll, columns_);
    if constexpr (Base::kArranges) {
      repeat<2, 0>(block, values, InOrder::kAll, Base::even());
      repeat<2, 1>(block, values, InOrder::kAll, Base::odd());
    }
  }

 private:
  using V = Vector<T>;
  static constexpr int64_t kLanes = lanes<T, V>();
  static constexpr int64_t kEnd = 2 * kLanes;  // columns of the vectors at an end

  /// to[k] = the value of column kFirst + kStep * k.
  template <int64_t kStep, int64_t kFirst>
  PALIMPSEST_HOST_DEVICE static void repeat(Block block, const T* values, InOrder in_order, T* to) {
    const auto begin_of = [](int64_t column) { return (column + kStep - 1 - kFirst) / kStep; };
    // The last vector of a channel may reach into the next one, which is stored after it.
    for (int64_t at = 0; at < block.width; at += block.plane, ++values) {
      const int64_t after = at + block.plane;
      if (in_order == InOrder::kEnds && at >= kEnd && after <= block.width - kEnd) continue;
      const V value = broadcast<V>(*values);
      for (int64_t k = begin_of(at); k < begin_of(after); k += kLanes) store(to + k, value);
    }
  }

  alignas(kLineBytes) T columns_[kMaxColumns + kLanes];
};

template <class S>
void strip_moments(Block block, const S* x, double* mean, double* squares) {
  using T = accumulate_t<S>;
  const int64_t channels = block.width / block.plane, samples = smaller(block.plane, kPivotSamples);
  alignas(kLineBytes) T pivot[kMaxColumns], sum[kMaxColumns], square[kMaxColumns];
  Pair<double> sums[kMaxColumns];
  for (int64_t c = 0; c < channels; ++c) mean[c] = squares[c] = 0;
  double before = 0;
  for_column_chunks<S>(block, [&](Block chunk, int64_t at) {
    const double count = static_cast<double>(chunk.rows * chunk.plane);
    for (int64_t j = 0; j < chunk.width; j += chunk.plane) {
      double sample_sum = 0;
      for (int64_t i = 0; i < samples; ++i) sample_sum += static_cast<double>(load_as<T>(x + at + j + i));
      fill(pivot + j, chunk.plane, as_stored<S>(static_cast<T>(sample_sum / static_cast<double>(samples))));
    }
    const auto sum_up = [&]() PALIMPSEST_INLINE_LAMBDA {
      columns_shifted_sums(chunk, x + at, pivot, sum, square);
      add_up_columns(chunk, sum, square, sums);
    };
    sum_up();
    bool far = false;
    for (int64_t c = 0; c < channels; ++c) {
      if (!is_far(count, sums[c].a, sums[c].b)) continue;
      T* const own = pivot + c * chunk.plane;
      fill(own, chunk.plane, as_stored<S>(static_cast<T>(*own + sums[c].a / count)));
      far = true;
    }
    if (far) sum_up();
    for (int64_t c = 0; c < channels; ++c)
      merge_shifted(before, count, static_cast<double>(pivot[c * chunk.plane]), sums[c].a, sums[c].b, mean[c],
                    squares[c]);
    before += count;
  });
}

/// Returns what makes the arguments of a strip, as column_arguments.
template <class S>
PALIMPSEST_HOST_DEVICE auto strip_arguments(const Block& block, InOrder in_order) {
  return [&block, in_order](const accumulate_t<S>* values, bool is_read) {
    return Spread<S>(block, values, is_read, in_order);
  };
}

template <class S>
void strip_apply(Block block, ActivationChoice activation, Saved saved,
                 const ApplyCoefficients<accumulate_t<S>>& coefficients, const ApplyTensors<S>& tensors,
                 Stores stores) {
  const InOrder in_order = saved == Saved::kOutputBit ? InOrder::kAll : InOrder::kEnds;
  apply_by_column(block, activation, saved, coefficients, tensors, stores,
                  strip_arguments<S>(block, in_order));
}

/// Returns the columns whose arguments a gradient may read in their order.
template <class S>
PALIMPSEST_HOST_DEVICE InOrder gradient_in_order(const Block& block, ActivationChoice activation,
                                                 Saved saved) {
  return is_straight_gradient<S>(activation, saved, block.width) ? InOrder::kEnds : InOrder::kAll;
}

template <class S>
void strip_reduce(Block block, ActivationChoice activation, Saved saved,
                  const BackwardCoefficients<accumulate_t<S>>& coefficients,
                  const GradientTensors<S>& tensors, double* sum_dy, double* sum_dy_t) {
  const InOrder in_order = gradient_in_order<S>(block, activation, saved);
  reduce_by_column(block, activation, saved, coefficients, tensors, sum_dy, sum_dy_t,
                   strip_arguments<S>(block, in_order));
}

template <class S>
void strip_backward(Block block, ActivationChoice activation, Saved saved, bool frozen,
                    const BackwardCoefficients<accumulate_t<S>>& coefficients,
                    const GradientTensors<S>& tensors, const BackwardOutputs<S>& out, Stores stores) {
  const InOrder in_order = gradient_in_order<S>(block, activation, saved);
  backward_by_column(block, activation, saved, frozen, coefficients, tensors, out, stores,
                     strip_arguments<S>(block, in_order));
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn
