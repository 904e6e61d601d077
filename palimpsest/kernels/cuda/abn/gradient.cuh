#pragma once

#include "palimpsest/kernels/cuda/abn/activation.cuh"
#include "palimpsest/kernels/cuda/abn/table.cuh"
#include "palimpsest/kernels/cuda/device/reduce.cuh"
#include "palimpsest/kernels/formulas/abn_formulas.h"
#include "palimpsest/kernels/formulas/branch_inverse.h"

/// dy = dz * act'(y) and t, from which x-hat = (t - offset) * scale, of one value after the other, and what
/// backward makes of them: the same formulas as those of the CPU (kernels/cpu/abn/gradient.h).
namespace palimpsest::kernels::cuda {

template <class S>
__device__ __forceinline__ AbnChannel<MathsOf<S>> channel_of(const BackwardArguments<S>& t, int64_t c) {
  return {t.weight, t.bias, t.mean, t.inv_std, c};
}

/// Sums over some values of one channel.
struct GradientSums {
  double dy, dy_t;

  __device__ __forceinline__ GradientSums& operator+=(const GradientSums& o) {
    dy += o.dy, dy_t += o.dy_t;
    return *this;
  }
};

/// The gradients of bias and weight, as they are stored.
template <class T>
struct ParameterGradients {
  T bias, weight;
};

template <class S>
__device__ __forceinline__ ParameterGradients<MathsOf<S>> parameter_gradients(const BackwardArguments<S>& t,
                                                                              int64_t c,
                                                                              const GradientSums& sums) {
  using T = MathsOf<S>;
  const Normalizer of_t = normalizer(t.from, channel_of(t, c));
  return {static_cast<T>(sums.dy), static_cast<T>(of_t.sum_dy_xhat(sums.dy, sums.dy_t))};
}

/// Of a panel's channels: t and y are found with the first three, dx = dy * per_dy + t * per_t + constant.
template <class T, int kPanel>
struct GradientCoefficients {
  alignas(16) T center[kPanel];
  alignas(16) T scale[kPanel];
  alignas(16) T shift[kPanel];
  alignas(16) T per_dy[kPanel];
  alignas(16) T per_t[kPanel];
  alignas(16) T constant[kPanel];

  /// Of the panel's channel j, channel c of the layer.
  template <class S>
  __device__ __forceinline__ void set_center(int j, const BackwardArguments<S>& t, int64_t c) {
    const CenterCoefficients<T> of_channel = center_coefficients(t.from, channel_of(t, c));
    center[j] = of_channel.center, scale[j] = of_channel.scale, shift[j] = of_channel.shift;
  }

  /// Those of dx; without sums for frozen statistics.
  template <class S>
  __device__ __forceinline__ void set_propagation(int j, const BackwardArguments<S>& t, int64_t c,
                                                  ParameterGradients<T> sums) {
    const double mean_dy = t.frozen ? 0 : static_cast<double>(sums.bias) / t.m;
    const double mean_dy_xhat = t.frozen ? 0 : static_cast<double>(sums.weight) / t.m;
    const InputGradientCoefficients<T> of_channel =
        input_gradient_coefficients(t.from, channel_of(t, c), mean_dy, mean_dy_xhat);
    per_dy[j] = of_channel.per_dy, per_t[j] = of_channel.per_t, constant[j] = of_channel.constant;
  }
};

/// Those of the channels that a thread works on: value i of a vector belongs to channel first + i / kEach.
template <class T, int kPanel, int kEach>
struct ThreadChannels {
  static constexpr bool kEachValue = kEach == 1;  ///< has a channel of its own
  const GradientCoefficients<T, kPanel>& of_panel;
  int first;

  __device__ __forceinline__ T center(int i) const { return of_panel.center[first + i / kEach]; }
  __device__ __forceinline__ T scale(int i) const { return of_panel.scale[first + i / kEach]; }
  __device__ __forceinline__ T shift(int i) const { return of_panel.shift[first + i / kEach]; }
  __device__ __forceinline__ T propagated(int i, T dy, T t) const {
    const int c = first + i / kEach;
    return dy * of_panel.per_dy[c] + (t * of_panel.per_t[c] + of_panel.constant[c]);
  }
};

/// What backward reads of V values, and then writes in its place.
template <class S, int V>
struct GradientInputs {
  Stored<S, V> kept, dz, residual;
};

/// The bits of V values from offset `at` on, the first one lowest.
template <int V>
__device__ __forceinline__ unsigned branch_bits(const uint8_t* branch, int64_t at) {
  const unsigned low = branch[at / 8], high = V > 1 ? branch[at / 8 + 1] : 0;  // both are there: branch_bytes
  return (low | high << 8) >> static_cast<unsigned>(at % 8);
}

/// value(i, e) for each of V values e, which lies at place i of `in`. Rolled, for maths that takes many
/// registers: a step at a time at the front, whereupon all that is held of the V values turns, in.turn()
/// among it. Else i is e, and the compiler has as many under way as it likes.
template <bool kRolled, int kStep, bool kResidual, class S, int V, class Value, class Turn>
__device__ __forceinline__ void for_each_value(GradientInputs<S, V>& in, const Value& value,
                                               const Turn& turn) {
  if constexpr (kRolled && V > kStep) {
    PALIMPSEST_NO_UNROLL
    for (int e = 0; e < V; e += kStep) {
      PALIMPSEST_UNROLL
      for (int i = 0; i < kStep; ++i) value(i, e + i);
      in.kept.template turn<kStep>();
      in.dz.template turn<kStep>();
      if constexpr (kResidual) in.residual.template turn<kStep>();
      turn();
    }
  } else {
    PALIMPSEST_UNROLL
    for (int e = 0; e < V; ++e) value(e, e);
  }
}

/// Values in one step of a rolled loop: one where the maths is long, as what is compiled is as long, too.
template <class S, int V, class Act>
inline constexpr int kRolledStep = Act::kLarge ? 1 : Stored<S, V>::kWord;

/// Whether the maths of S takes so many registers that dz, and what was kept, are read again after the
/// activation's part rather than held through it.
template <class S>
inline constexpr bool kReadsAgain = sizeof(S) == 8;

/// The residual's part of y.
template <class S, int V>
__device__ __forceinline__ MathsOf<S> residual_part(const BackwardArguments<S>& t,
                                                    const GradientInputs<S, V>& in, int i) {
  const MathsOf<S> r = in.residual.value(i);
  return t.relu_residual && r <= MathsOf<S>(0) ? MathsOf<S>(0) : r;
}

/// y of what was kept before the activation, without its residual; `away` is kept - center.
template <class S, class Channels>
__device__ __forceinline__ MathsOf<S> y_before(const BackwardArguments<S>& t, const Channels& k, int e,
                                               MathsOf<S> kept, MathsOf<S> away) {
  return t.from == Saved::kPreActivation ? kept : away * k.scale(e) + k.shift(e);
}

/// sink(i, e, dy, t, z) for each value e at place i, one after the other, and turn() where for_each_value has
/// it. z is act(y) where what was kept lies before the activation and kAgain asks for it, else nothing of
/// use.
template <bool kResidual, bool kAgain, class S, int V, class Act, class Channels, class Sink, class Turn>
__device__ __forceinline__ void for_each_gradient(const BackwardArguments<S>& t, const Act& activation,
                                                  const Channels& k, int64_t at, GradientInputs<S, V>& in,
                                                  const Sink& sink, const Turn& turn) {
  using T = MathsOf<S>;
  const bool has_residual = kResidual && t.residual;
  const auto each = [&](const auto& value) {
    constexpr bool kRolled = Act::kLarge || (V == 8 && (Channels::kEachValue || kResidual));
    for_each_value<kRolled, kRolledStep<S, V, Act>, kResidual>(in, value, turn);
  };
  const auto read_again = [&] {
    if constexpr (kReadsAgain<S>) {
      forget_memory();
      in.dz.load(t.dz + at);
      in.kept.load(t.kept + at);
    }
  };
  const auto from_y = [&](int i, int e, T y, T derivative) {
    read_again();
    const T dy = in.dz.value(i) * derivative;
    if (has_residual) y -= residual_part(t, in, i);
    y -= k.center(e);
    if (t.from == Saved::kOutputForm1) y *= k.scale(e);
    sink(i, e, dy, y, T(0));
  };
  if constexpr (Act::kBranches) {
    const unsigned bits = branch_bits<V>(t.branch, at);
    activation.dispatch([&](const auto& act) {
      constexpr Precision kPrecision = precision_of<S>();
      each([&](int i, int e) {
        const Recovered<T> from = recover<T>(act, kPrecision, in.kept.value(i), (bits >> e & 1u) != 0);
        from_y(i, e, from.y, from.derivative);
      });
    });
  } else if (is_before_activation(t.from)) {
    activation.dispatch([&](const auto& act) {
      each([&](int i, int e) {
        const T kept = in.kept.value(i);
        T y = y_before(t, k, e, kept, kept - k.center(e));
        if (has_residual) y += residual_part(t, in, i);
        const T derivative = act.derivative_at(y), z = kAgain && t.z ? act.forward(y) : T(0);
        read_again();
        const T dy = in.dz.value(i) * derivative;
        sink(i, e, dy, in.kept.value(i) - k.center(e), z);
      });
    });
  } else {
    activation.dispatch([&]<class One>(const One& act) {
      if constexpr (Invertible<One>)
        each([&](int i, int e) {
          const T z = in.kept.value(i);
          from_y(i, e, act.inverse(z), act.derivative(z));
        });
    });
  }
}

/// z of one value again, in the place of what was kept before the activation.
template <bool kResidual, class S, class Act, class Channels>
__device__ __forceinline__ void make_z_again(const BackwardArguments<S>& t, const Act& activation,
                                             const Channels& k, int64_t at, GradientInputs<S, 1>& in) {
  using T = MathsOf<S>;
  forget_memory();
  in.kept.load(t.kept + at);
  const T kept = in.kept.value(0);
  T y = y_before(t, k, 0, kept, kept - k.center(0));
  if constexpr (kResidual)
    if (t.residual) {
      in.residual.load(t.residual + at);
      y += residual_part(t, in, 0);
    }
  activation.dispatch([&](const auto& act) { in.kept.set_value(0, act.forward(y)); });
}

}  // namespace palimpsest::kernels::cuda
