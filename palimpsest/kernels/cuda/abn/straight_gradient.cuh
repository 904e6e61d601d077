#pragma once

#include "palimpsest/kernels/cuda/abn/gradient.cuh"

/// dy, t and dx of a straight activation, V values at a time: the short arithmetic of the common case. What
/// differs between launches is decided once per vector, and coefficients stay in registers.
namespace palimpsest::kernels::cuda::abn_detail {

/// True if dx is computed from t + center, with the center in the constant: one subtraction less per value.
/// The sum loses digits where |center| is large against the standard deviation, but less than the 16-bit
/// saved values have lost there before.
template <class S>
inline constexpr bool kFoldsCenter = sizeof(S) == 2;

/// What the saved tensor is to a straight activation.
enum class StraightSource {
  kOutput,  ///< z
  kY,       ///< y before the residual
  kScaled,  ///< x or x-hat: y is it less the center, times scale, plus shift
};

/// Calls function.template operator()<source>() for the saved tensor of a launch. Each source has code of its
/// own for a whole vector, so that no value waits for a choice.
template <class Function>
__device__ __forceinline__ void with_source(Saved saved, const Function& function) {
  if (!is_before_activation(saved))
    function.template operator()<StraightSource::kOutput>();
  else if (saved == Saved::kPreActivation)
    function.template operator()<StraightSource::kY>();
  else
    function.template operator()<StraightSource::kScaled>();
}

/// Values of a vector that are worked on at once: all, or four where registers are short, for coefficients of
/// each value or for a residual. One read of 16 bytes from shared memory serves four.
template <int kChannels, bool kResidual, int V>
inline constexpr int kAtOnce = (kChannels == 1 && !kResidual) || V < 4 ? V : 4;

/// What some values of one vector contribute to the gradients.
template <class S, int kCount>
struct StraightGradient {
  Values<S, kCount> dy;
  Values<S, kCount> t;  ///< without the center subtracted
  Values<S, kCount> y;  ///< set if the saved tensor lies before the activation
};

/// Returns the gradient of the values of `in` from value `first` on.
template <StraightSource kSource, bool kResidual, int kCount, class S, int V, class Act, class Channels>
__device__ __forceinline__ StraightGradient<S, kCount> straight_gradient(
    const BackwardArguments<S>& arguments, const Act& activation, const Channels& channels,
    const GradientInputs<S, V>& in, int first) {
  using T = accumulate_t<S>;
  StraightGradient<S, kCount> g{
      in.dz.template values<kCount>(first), in.saved_values.template values<kCount>(first), {}};
  Values<S, kCount> residual;
  if constexpr (kResidual) {
    residual = in.residual.template values<kCount>(first);
    PALIMPSEST_UNROLL
    for (int i = 0; i < kCount; ++i)
      residual[i] = residual[i] <= arguments.residual_floor ? T(0) : residual[i];
  }
  if constexpr (kSource == StraightSource::kOutput) {
    PALIMPSEST_UNROLL
    for (int i = 0; i < kCount; ++i) {
      g.dy[i] *= activation.derivative(g.t[i]);
      g.t[i] = activation.inverse(g.t[i]);
      if constexpr (kResidual) g.t[i] -= residual[i];
    }
  } else {
    g.y = g.t;
    if constexpr (kSource == StraightSource::kScaled) {
      forget_memory();  // keeps these coefficients out of the registers of the other sources
      PALIMPSEST_UNROLL
      for (int i = 0; i < kCount; ++i)
        g.y[i] =
            (g.t[i] - channels.center(first + i)) * channels.scale(first + i) + channels.shift(first + i);
    }
    PALIMPSEST_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kResidual) g.y[i] += residual[i];
      g.dy[i] *= activation.derivative(g.y[i]);
    }
  }
  return g;
}

/// The centers of a thread's channels; kHeld: in registers.
template <bool kHeld, class T, int kChannels, class Channels>
struct StraightCenters {
  const Channels& channels;
  T held[kHeld ? kChannels : 1];

  __device__ __forceinline__ explicit StraightCenters(const Channels& of) : channels(of) {
    if constexpr (kHeld) of.of_panel.center.read(of.first, held);
  }
  __device__ __forceinline__ T operator()(int c) const {
    if constexpr (kHeld) return held[c];
    return channels.of_panel.center.of_thread(channels.first, c);
  }
};

/// The coefficients of a thread's channels for dx; kHeld: in registers.
template <bool kHeld, class S, int kChannels, class Channels>
struct StraightCoefficients {
  using T = accumulate_t<S>;
  static constexpr int kCount = kHeld ? kChannels : 1;
  const Channels& channels;
  StraightCenters<kHeld && !kFoldsCenter<S>, T, kChannels, Channels> center;
  T per_dy[kCount], per_t[kCount], constant[kCount];

  __device__ __forceinline__ explicit StraightCoefficients(const Channels& of) : channels(of), center(of) {
    if constexpr (kHeld) {
      of.of_panel.per_dy.read(of.first, per_dy);
      of.of_panel.per_t.read(of.first, per_t);
      of.of_panel.constant.read(of.first, constant);
    }
  }

  __device__ __forceinline__ T dx(int c, T dy, T t) const {
    if constexpr (!kFoldsCenter<S>) t -= center(c);
    if constexpr (kHeld) return dy * per_dy[c] + (t * per_t[c] + constant[c]);
    return channels.dx(c, dy, t);
  }
};

/// Adds V values to the sums of a thread, whose channels have the centers `center`.
template <bool kResidual, class S, int V, int kChannels, class Act, class Channels, class Centers>
__device__ __forceinline__ void add_straight_gradient(const BackwardArguments<S>& arguments,
                                                      const Act& activation, const Channels& channels,
                                                      const Centers& center, const GradientInputs<S, V>& in,
                                                      ThreadSums<accumulate_t<S>, kChannels>& sums) {
  constexpr int kPerChannel = V / kChannels, kCount = kAtOnce<kChannels, kResidual, V>;
  with_source(arguments.saved, [&]<StraightSource kSource>() {
    PALIMPSEST_UNROLL
    for (int first = 0; first < V; first += kCount) {
      const StraightGradient<S, kCount> g =
          straight_gradient<kSource, kResidual, kCount>(arguments, activation, channels, in, first);
      PALIMPSEST_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const int c = (first + i) / kPerChannel;
        sums.dy[c] += g.dy[i];
        sums.dy_t[c] += g.dy[i] * (g.t[i] - center(c));
      }
    }
  });
}

/// Writes dx of V values and, if they are wanted, the residual's gradient and z. Each result takes the
/// registers of the input that it replaces.
template <bool kResidual, int kChannels, class S, int V, class Act, class Channels, class Coefficients>
__device__ __forceinline__ void apply_straight_gradient(const BackwardArguments<S>& arguments,
                                                        const Act& activation, const Channels& channels,
                                                        const Coefficients& coefficients, int64_t at,
                                                        GradientInputs<S, V>& in) {
  using T = accumulate_t<S>;
  constexpr int kPerChannel = V / kChannels, kCount = kAtOnce<kChannels, kResidual, V>;
  const auto do_values = [&]<StraightSource kSource>(int first) {
    StraightGradient<S, kCount> g =
        straight_gradient<kSource, kResidual, kCount>(arguments, activation, channels, in, first);
    if (kResidual && arguments.dresidual) {
      Values<S, kCount> dresidual = g.dy;
      const Values<S, kCount> residual = in.residual.template values<kCount>(first);
      PALIMPSEST_UNROLL
      for (int i = 0; i < kCount; ++i)
        dresidual[i] = residual[i] <= arguments.residual_floor ? T(0) : dresidual[i];
      in.residual.set(dresidual, first);
    }
    PALIMPSEST_UNROLL
    for (int i = 0; i < kCount; ++i) {
      // dx does not depend on t if statistics are frozen, and t may be infinite.
      g.dy[i] = coefficients.dx((first + i) / kPerChannel, g.dy[i], arguments.frozen ? T(0) : g.t[i]);
    }
    in.dz.set(g.dy, first);
    if constexpr (kSource != StraightSource::kOutput)
      if (arguments.z)
        activation.with_forward([&](const auto& forward) {
          PALIMPSEST_UNROLL
          for (int i = 0; i < kCount; ++i) g.y[i] = forward(g.y[i]);
          in.saved_values.set(g.y, first);
        });
  };
  with_source(arguments.saved, [&]<StraightSource kSource>() {
    PALIMPSEST_UNROLL
    for (int first = 0; first < V; first += kCount) do_values.template operator()<kSource>(first);
    if (kResidual && arguments.dresidual) in.residual.store(arguments.dresidual + at);
    in.dz.store(arguments.dx + at);
    if constexpr (kSource != StraightSource::kOutput)
      if (arguments.z) in.saved_values.store(arguments.z + at);
  });
}

}  // namespace palimpsest::kernels::cuda::abn_detail
