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

/// A per-channel argument of a strip, repeated for each of its columns if the sweep reads it.
template <class T>
class Spread {
  using V = Vector<T>;
  static constexpr int64_t kLanes = lanes<T, V>();

 public:
  PALIMPSEST_HOST_DEVICE Spread(Block block, const T* values, bool is_read = true) {
    if (!is_read) return;
    // The last vector of a channel may reach into the next one, which is stored after it.
    for (int64_t at = 0; at < block.width; at += block.plane) {
      const V value = broadcast<V>(*values++);
      for (int64_t j = at; j < at + block.plane; j += kLanes) store(columns_ + j, value);
    }
  }
  PALIMPSEST_HOST_DEVICE operator const T*() const { return columns_; }

 private:
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

template <class S>
void strip_apply(Block block, ActivationChoice activation, Saved saved,
                 const ApplyCoefficients<accumulate_t<S>>& of_channels, const ApplyTensors<S>& tensors,
                 Stores stores) {
  using Column = Spread<accumulate_t<S>>;
  const bool normalizes = saved == Saved::kNormalized;
  const Column mean(block, of_channels.mean, !kIs16Bit<S>), scale(block, of_channels.scale),
      shift(block, of_channels.shift), weight(block, of_channels.weight, normalizes),
      bias(block, of_channels.bias, normalizes);
  apply<S, false>(block, activation, saved, {mean, scale, shift, weight, bias}, tensors, stores);
}

/// Whether a gradient reads scale or shift (Gradient).
constexpr bool reads_affine(Saved saved) {
  return saved == Saved::kInput || saved == Saved::kOutputForm1;
}

template <class S>
void strip_reduce(Block block, ActivationChoice activation, Saved saved,
                  const BackwardCoefficients<accumulate_t<S>>& of_channels, const GradientTensors<S>& tensors,
                  double* sum_dy, double* sum_dy_t) {
  using Column = Spread<accumulate_t<S>>;
  const bool affine = reads_affine(saved);
  const Column center(block, of_channels.center), scale(block, of_channels.scale, affine),
      shift(block, of_channels.shift, affine);
  reduce<S, false>(block, activation, saved, {center, scale, shift, nullptr, nullptr, nullptr}, tensors,
                   sum_dy, sum_dy_t);
}

template <class S>
void strip_backward(Block block, ActivationChoice activation, Saved saved, bool frozen,
                    const BackwardCoefficients<accumulate_t<S>>& of_channels,
                    const GradientTensors<S>& tensors, const BackwardOutputs<S>& out, Stores stores) {
  using Column = Spread<accumulate_t<S>>;
  const bool affine = reads_affine(saved);
  const Column center(block, of_channels.center, !kIs16Bit<S>), scale(block, of_channels.scale, affine),
      shift(block, of_channels.shift, affine), per_dy(block, of_channels.per_dy),
      per_t(block, of_channels.per_t), constant(block, of_channels.constant);
  backward<S, false>(block, activation, saved, frozen, {center, scale, shift, per_dy, per_t, constant},
                     tensors, out, stores);
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn
