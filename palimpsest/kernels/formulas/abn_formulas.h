#pragma once

#include "palimpsest/base/host_device.h"
#include "palimpsest/kernels/abn.h"

#include <cstdint>

/// The per-channel coefficients of the fused layer, for host and device. They are computed in f64 and rounded
/// once to T, the accumulate type, in which the kernels run over the values (twice where uncentered_shift is used).
///
/// Forward, from x or (to recompute z) from the saved values, v:
///   k = (v - mean) * scale + shift;   y = k, or y = k * weight + bias where k = x-hat is saved
/// Backward first finds y and t, from which x-hat = (t - offset) * scale (Normalizer):
///   saved z          t = act^-1(z) - residual - center, for kOutputForm1 times scale
///   saved y          t = v - center
///   saved x, x-hat   t = v - center,   y = t * scale + shift + residual
/// and then
///   dx = dy * per_dy + t * per_t + constant
namespace palimpsest::kernels {

template <class T>
PALIMPSEST_HOST_DEVICE double value_or(const T* values, int64_t c, double absent) {
  return values ? static_cast<double>(values[c]) : absent;
}

/// Returns the part of a mean that does not fit into a T.
template <class T>
PALIMPSEST_HOST_DEVICE double low_part(double mean) {
  return mean - static_cast<double>(static_cast<T>(mean));
}

/// Returns 1 / weight, or 0 for a weight of 0 whose channel has its results from a slot, or found none: then
/// its gradient is wrong in either case, and a NaN would spread to all weights.
PALIMPSEST_HOST_DEVICE double inverse_or_zero(double weight) {
  return weight == 0 ? 0 : 1 / weight;
}

/// Channel c of a layer: parameters and statistics, each read only when asked for. Null weights mean 1, null
/// biases 0.
template <class T>
struct AbnChannel {
  const T* weights;
  const T* biases;
  const double* means;
  const double* inv_stds;
  int64_t c;

  PALIMPSEST_HOST_DEVICE double weight() const { return value_or(weights, c, 1); }
  PALIMPSEST_HOST_DEVICE double bias() const { return value_or(biases, c, 0); }
  PALIMPSEST_HOST_DEVICE double mean() const { return means[c]; }
  PALIMPSEST_HOST_DEVICE double inv_std() const { return inv_stds[c]; }
};

/// `mean` is subtracted first: x * scale + (shift - mean * scale) would lose all digits where |mean| is large
/// against the standard deviation (in 16 bits: uncentered_shift). shift carries the part of the mean that does not
/// fit into a T.
template <class T>
struct ForwardCoefficients {
  T mean, scale, shift, weight, bias;
};

/// From x. `weight` and `bias` as AbnChannel has them.
template <class T>
PALIMPSEST_HOST_DEVICE ForwardCoefficients<T> forward_coefficients(Saved saved, double weight, double bias,
                                                                   double mean, double inv_std) {
  const bool normalized = saved == Saved::kNormalized;
  const double scale = (normalized ? 1 : weight) * inv_std;
  const double shift = (normalized ? 0 : bias) - low_part<T>(mean) * scale;
  return {static_cast<T>(mean), static_cast<T>(scale), static_cast<T>(shift), static_cast<T>(weight),
          static_cast<T>(bias)};
}

template <class T>
PALIMPSEST_HOST_DEVICE ForwardCoefficients<T> forward_coefficients(Saved saved,
                                                                   const AbnChannel<T>& channel) {
  return forward_coefficients<T>(saved, channel.weight(), channel.bias(), channel.mean(), channel.inv_std());
}

/// From the saved values to the same y. Adding -0 changes nothing, not even the sign of a zero.
template <class T>
PALIMPSEST_HOST_DEVICE ForwardCoefficients<T> recompute_coefficients(Saved saved,
                                                                     const AbnChannel<T>& channel) {
  if (saved == Saved::kPreActivation) return {T(0), T(1), T(-0.0), T(0), T(0)};
  if (saved == Saved::kNormalized)
    return {T(0), static_cast<T>(channel.weight()), static_cast<T>(channel.bias()), T(0), T(0)};
  return forward_coefficients(saved, channel);
}

/// Returns whether t = weight * x-hat.
PALIMPSEST_HOST_DEVICE constexpr bool is_scaled(Saved saved) {
  return saved == Saved::kOutput || saved == Saved::kOutputBit || saved == Saved::kPreActivation;
}

template <class T>
struct CenterCoefficients {
  T center, scale, shift;
};

template <class T>
PALIMPSEST_HOST_DEVICE CenterCoefficients<T> center_coefficients(Saved saved, const AbnChannel<T>& channel) {
  // Assigned in this form because nvcc makes 30 instructions less of it than of a chain of else.
  const double weight = channel.weight(), bias = channel.bias();
  double center = bias, scale = 1, shift = 0;
  if (saved == Saved::kOutputForm1) scale = inverse_or_zero(weight);
  if (saved == Saved::kNormalized) center = 0, scale = weight, shift = bias;
  if (saved == Saved::kInput) {
    center = channel.mean(), scale = weight * channel.inv_std();
    shift = bias - low_part<T>(center) * scale;
  }
  return {static_cast<T>(center), static_cast<T>(scale), static_cast<T>(shift)};
}

/// Returns the shift of v * scale + shift, which replaces (v - center) * scale + `shift` for values in 16 bits on a
/// CPU: there the subtraction is up to a tenth of a sweep. Its rounding is at most 2^-24 of center * scale: at most
/// 2^-13 of what the last bit of a value as large as the center stands for.
template <class T>
PALIMPSEST_HOST_DEVICE T uncentered_shift(T center, T scale, T shift) {
  if (center == 0) return shift;  // keeps -0, and makes no NaN of an infinite scale
  return static_cast<T>(static_cast<double>(shift) -
                        static_cast<double>(center) * static_cast<double>(scale));
}

/// running <- (1 - momentum) * running + momentum * batch, rounded once.
template <class T>
PALIMPSEST_HOST_DEVICE void move_running(T& running, double batch, double momentum) {
  running = static_cast<T>((1 - momentum) * static_cast<double>(running) + momentum * batch);
}

/// x-hat = (t - offset) * scale.
struct Normalizer {
  double offset, scale;

  /// sum of dy * x-hat from the sums of dy and of dy * t.
  PALIMPSEST_HOST_DEVICE double sum_dy_xhat(double sum_dy, double sum_dy_t) const {
    return (sum_dy_t - offset * sum_dy) * scale;
  }
};

template <class T>
PALIMPSEST_HOST_DEVICE Normalizer normalizer(Saved saved, const AbnChannel<T>& channel) {
  if (saved == Saved::kInput) return {low_part<T>(channel.mean()), channel.inv_std()};
  return {0, is_scaled(saved) ? inverse_or_zero(channel.weight()) : 1};
}

template <class T>
struct InputGradientCoefficients {
  T per_dy, per_t, constant;
};

/// dx = weight * inv_std * (dy - mean_dy - x-hat * mean_dy_xhat), sorted by dy, t and the rest. mean_dy is
/// sum_dy / m, mean_dy_xhat is sum_dy_xhat / m; both are 0 for frozen statistics.
template <class T>
PALIMPSEST_HOST_DEVICE InputGradientCoefficients<T> input_gradient_coefficients(Saved saved,
                                                                                const AbnChannel<T>& channel,
                                                                                double mean_dy,
                                                                                double mean_dy_xhat) {
  const double per_dy = channel.weight() * channel.inv_std();
  // If t = weight * x-hat, the weight cancels and no division by it is needed.
  const Normalizer of_t = is_scaled(saved) ? Normalizer{0, 1} : normalizer(saved, channel);
  const double per_t = -mean_dy_xhat * (is_scaled(saved) ? channel.inv_std() : per_dy * of_t.scale);
  return {static_cast<T>(per_dy), static_cast<T>(per_t),
          static_cast<T>(-per_dy * mean_dy - per_t * of_t.offset)};
}

}  // namespace palimpsest::kernels
