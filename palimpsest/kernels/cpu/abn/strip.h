#pragma once

// As vector.h: only for units that are compiled once per instruction set. A strip is swept as columns are,
// row by row through neighbouring memory, each column with its channel's arguments; sums over columns are
// added up to the channel's at the end. As planes, one after the other, channels of 7x7 pixels would read 196
// bytes of every image, from pages that all fall on the same sets of a cache.

#include "palimpsest/kernels/cpu/abn/apply.h"
#include "palimpsest/kernels/cpu/abn/gradient.h"
#include "palimpsest/kernels/cpu/abn/moments.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {
namespace {

template <class T>
PALIMPSEST_HOST_DEVICE void fill(T* columns, int64_t count, T value) {
  for (int64_t j = 0; j < count; ++j) columns[j] = value;
}

/// A per-channel argument of a strip, once for each of its columns.
template <class T>
class Spread {
 public:
  PALIMPSEST_HOST_DEVICE Spread(Block block, const T* values) {
    for (int64_t at = 0; at < block.width; at += block.plane) fill(columns_ + at, block.plane, *values++);
  }
  PALIMPSEST_HOST_DEVICE operator const T*() const { return columns_; }

 private:
  T columns_[kMaxColumns];
};

template <class S>
void strip_moments(Block block, const S* x, double* mean, double* squares) {
  using T = MathsOf<S>;
  const int64_t channels = block.width / block.plane, samples = smaller(block.plane, kPivotSamples);
  T pivot[kMaxColumns], sum[kMaxColumns], square[kMaxColumns];
  Pair<double> sums[kMaxColumns];
  for (int64_t c = 0; c < channels; ++c) mean[c] = squares[c] = 0;
  double before = 0;
  for_column_chunks(block, [&](Block chunk, int64_t at) {
    const double count = static_cast<double>(chunk.rows * chunk.plane);
    for (int64_t j = 0; j < chunk.width; j += chunk.plane) {
      double sample_sum = 0;
      for (int64_t i = 0; i < samples; ++i) sample_sum += static_cast<double>(load_as<T>(x + at + j + i));
      fill(pivot + j, chunk.plane, static_cast<T>(sample_sum / static_cast<double>(samples)));
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
      fill(own, chunk.plane, static_cast<T>(*own + sums[c].a / count));
      far = true;
    }
    if (far) sum_up();
    for (int64_t c = 0; c < channels; ++c)
      merge_shifted(before, count, static_cast<double>(pivot[c * chunk.plane]), sums[c].a, sums[c].b, mean[c],
                    squares[c]);
    before += count;
  });
}

template <class S>
void strip_apply(Block block, ActivationChoice activation, Keep keep, const ApplyCoefficients<MathsOf<S>>& k,
                 const ApplyTensors<S>& t, Destination to) {
  using Column = Spread<MathsOf<S>>;
  const Column mean(block, k.mean), scale(block, k.scale), shift(block, k.shift), weight(block, k.weight),
      bias(block, k.bias);
  apply<S, false>(block, activation, keep, {mean, scale, shift, weight, bias}, t, to);
}

template <class S>
void strip_reduce(Block block, ActivationChoice activation, From from,
                  const BackwardCoefficients<MathsOf<S>>& k, const GradientTensors<S>& t, double* sum_dy,
                  double* sum_dy_t) {
  using Column = Spread<MathsOf<S>>;
  const Column center(block, k.center), scale(block, k.scale), shift(block, k.shift);
  reduce<S, false>(block, activation, from, {center, scale, shift, nullptr, nullptr, nullptr}, t, sum_dy,
                   sum_dy_t);
}

template <class S>
void strip_backward(Block block, ActivationChoice activation, From from, bool frozen,
                    const BackwardCoefficients<MathsOf<S>>& k, const GradientTensors<S>& t,
                    const BackwardOutputs<S>& out, Destination to) {
  using Column = Spread<MathsOf<S>>;
  const Column center(block, k.center), scale(block, k.scale), shift(block, k.shift), per_dy(block, k.per_dy),
      per_t(block, k.per_t), constant(block, k.constant);
  backward<S, false>(block, activation, from, frozen, {center, scale, shift, per_dy, per_t, constant}, t, out,
                     to);
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
