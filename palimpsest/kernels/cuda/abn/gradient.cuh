#pragma once

#include "palimpsest/kernels/cuda/abn/activation.cuh"
#include "palimpsest/kernels/cuda/abn/table.cuh"
#include "palimpsest/kernels/cuda/device/gradient_sums.cuh"
#include "palimpsest/kernels/cuda/device/panel_values.cuh"
#include "palimpsest/kernels/formulas/abn_formulas.h"
#include "palimpsest/kernels/formulas/branch_inverse.h"

/// The coefficients of backward (formulas/abn_formulas.h), and dy = dz * act'(y) and t of one value after
/// another, for activations whose arithmetic takes many registers. straight_gradient.cuh does the others.
namespace palimpsest::kernels::cuda::abn_detail {

template <class S>
__device__ __forceinline__ AbnChannel<accumulate_t<S>> channel_of(const BackwardArguments<S>& arguments,
                                                                  int64_t c) {
  return {arguments.weight, arguments.bias, arguments.mean, arguments.inv_std, c};
}

/// The gradients of bias and weight, as they are stored.
template <class T>
struct ParameterGradients {
  T bias, weight;
};

template <class S>
__device__ __forceinline__ ParameterGradients<accumulate_t<S>> parameter_gradients(
    const BackwardArguments<S>& arguments, int64_t c, const GradientSums& sums) {
  using T = accumulate_t<S>;
  const Normalizer of_t = normalizer(arguments.saved, channel_of(arguments, c));
  return {static_cast<T>(sums.dy), static_cast<T>(of_t.sum_dy_xhat(sums.dy, sums.dy_t))};
}

/// The coefficients of a panel's channels, in shared memory.
template <class T, int kChannels, int kPanel>
struct GradientCoefficients {
  PanelValues<T, kChannels, kPanel> center, scale, shift, per_dy, per_t, constant;

  /// Sets the coefficients of y and t for the panel's channel j, which is channel c of the tensor.
  template <class S>
  __device__ __forceinline__ void set_center(int j, const BackwardArguments<S>& arguments, int64_t c) {
    const auto values = center_coefficients(arguments.saved, channel_of(arguments, c));
    center[j] = values.center, scale[j] = values.scale, shift[j] = values.shift;
  }

  /// Sets the coefficients of y and t at place j to those of place `from_j` in `from`.
  template <class From>
  __device__ __forceinline__ void copy_center(int j, From& from, int from_j) {
    center[j] = from.center[from_j], scale[j] = from.scale[from_j], shift[j] = from.shift[from_j];
  }
  /// The same for the coefficients of dx.
  template <class From>
  __device__ __forceinline__ void copy_dx(int j, From& from, int from_j) {
    per_dy[j] = from.per_dy[from_j], per_t[j] = from.per_t[from_j], constant[j] = from.constant[from_j];
  }

  /// Sets the coefficients of dx after those of t. `sums` are ignored if statistics are frozen. kFolded: the
  /// constant contains the center, so that dx is a function of t + center.
  template <bool kFolded, class S>
  __device__ __forceinline__ void set_dx(int j, const BackwardArguments<S>& arguments, int64_t c,
                                         ParameterGradients<T> sums) {
    const double mean_dy = arguments.frozen ? 0 : static_cast<double>(sums.bias) / arguments.m;
    const double mean_dy_xhat = arguments.frozen ? 0 : static_cast<double>(sums.weight) / arguments.m;
    const auto values =
        input_gradient_coefficients(arguments.saved, channel_of(arguments, c), mean_dy, mean_dy_xhat);
    per_dy[j] = values.per_dy, per_t[j] = values.per_t, constant[j] = values.constant;
    if constexpr (kFolded)
      constant[j] = static_cast<T>(static_cast<double>(values.constant) -
                                   static_cast<double>(center[j]) * static_cast<double>(values.per_t));
  }
};

/// The coefficients of a thread's channels in shared memory: value i of a vector belongs to channel
/// i / kPerChannel.
template <class T, int kChannels, int kPanel, int kPerChannel>
struct ThreadChannels {
  static constexpr int kValues = kPerChannel;
  const GradientCoefficients<T, kChannels, kPanel>& of_panel;
  int first;  ///< the thread's first channel, counted within the panel

  __device__ __forceinline__ T center(int i) const {
    return of_panel.center.of_thread(first, i / kPerChannel);
  }
  __device__ __forceinline__ T scale(int i) const { return of_panel.scale.of_thread(first, i / kPerChannel); }
  __device__ __forceinline__ T shift(int i) const { return of_panel.shift.of_thread(first, i / kPerChannel); }
  __device__ __forceinline__ T dx(int c, T dy, T t) const {
    return dy * of_panel.per_dy.of_thread(first, c) +
           (t * of_panel.per_t.of_thread(first, c) + of_panel.constant.of_thread(first, c));
  }
};

/// The inputs of backward for V values. The results take the same registers.
template <class S, int V>
struct GradientInputs {
  Stored<S, V> saved_values, dz, residual;
};

/// Returns the bits of V values from offset `at` on, the first bit lowest.
template <int V>
__device__ __forceinline__ unsigned branch_bits(const uint8_t* branch, int64_t at) {
  // branch_bytes() has a byte behind the last bit, so that both bytes are there.
  const unsigned low = branch[at / 8], high = V > 1 ? branch[at / 8 + 1] : 0;
  return (low | high << 8) >> static_cast<unsigned>(at % 8);
}

/// Calls value(e) for each of V values, one after the other in a loop, because the arithmetic takes many
/// registers and much code. The value is the first of `in` at its turn: `in` rotates, and rotate() must
/// rotate all other values.
template <bool kResidual, class S, int V, class Value, class Rotate>
__device__ __forceinline__ void for_each_value(GradientInputs<S, V>& in, const Value& value,
                                               const Rotate& rotate) {
  PALIMPSEST_NO_UNROLL
  for (int e = 0; e < V; ++e) {
    value(e);
    in.saved_values.rotate();
    in.dz.rotate();
    if constexpr (kResidual) in.residual.rotate();
    rotate();
  }
}

/// True if dz and the saved values are read again after the activation, whose arithmetic leaves no registers
/// for them.
template <class S>
inline constexpr bool kReadsAgain = sizeof(S) == 8;

/// Returns the value that the residual adds to y.
template <class S, int V>
__device__ __forceinline__ accumulate_t<S> residual_part(const BackwardArguments<S>& arguments,
                                                         const GradientInputs<S, V>& in) {
  using T = accumulate_t<S>;
  const T residual = in.residual.value(0);
  return residual <= arguments.residual_floor ? T(0) : residual;
}

/// Returns y without its residual, from a saved value before the activation; `t` is saved - center.
template <class S, class Channels>
__device__ __forceinline__ accumulate_t<S> y_before(const BackwardArguments<S>& arguments,
                                                    const Channels& channels, int e, accumulate_t<S> saved,
                                                    accumulate_t<S> t) {
  return arguments.saved == Saved::kPreActivation ? saved : t * channels.scale(e) + channels.shift(e);
}

/// Calls sink(e, dy, t, z) for each of the V values at offset `at`, one after the other; rotate() as in
/// for_each_value. z is act(y) if kWithZ, arguments.z, and the saved tensor lies before the activation;
/// else undefined.
template <bool kResidual, bool kWithZ, class S, int V, class Act, class Channels, class Sink, class Rotate>
__device__ __forceinline__ void for_each_gradient(const BackwardArguments<S>& arguments,
                                                  const Act& activation, const Channels& channels, int64_t at,
                                                  GradientInputs<S, V>& in, const Sink& sink,
                                                  const Rotate& rotate) {
  using T = accumulate_t<S>;
  const bool has_residual = kResidual && arguments.residual;
  const auto each = [&](const auto& value) { for_each_value<kResidual>(in, value, rotate); };
  const auto read_again = [&] {
    if constexpr (kReadsAgain<S>) {
      forget_memory();
      in.dz.load(arguments.dz + at);
      in.saved_values.load(arguments.saved_values + at);
    }
  };
  const auto from_y = [&](int e, T y, T derivative) {
    read_again();
    const T dy = in.dz.value(0) * derivative;
    if (has_residual) y -= residual_part(arguments, in);
    y -= channels.center(e);
    sink(e, dy, y, T(0));
  };
  if constexpr (Act::kBranches) {
    const unsigned bits = branch_bits<V>(arguments.branch, at);
    activation.dispatch([&](const auto& act) {
      constexpr Precision kPrecision = precision_of<S>();
      each([&](int e) {
        const Recovered<T> from =
            recover<T>(act, kPrecision, in.saved_values.value(0), (bits >> e & 1u) != 0);
        from_y(e, from.y, from.derivative);
      });
    });
  } else if (is_before_activation(arguments.saved)) {
    activation.dispatch([&](const auto& act) {
      each([&](int e) {
        const T saved = in.saved_values.value(0);
        T y = y_before(arguments, channels, e, saved, saved - channels.center(e));
        if (has_residual) y += residual_part(arguments, in);
        const T derivative = act.derivative_at(y), z = kWithZ && arguments.z ? act.forward(y) : T(0);
        read_again();
        const T dy = in.dz.value(0) * derivative;
        sink(e, dy, in.saved_values.value(0) - channels.center(e), z);
      });
    });
  } else {
    activation.dispatch([&]<class One>(const One& act) {
      if constexpr (Invertible<One>)
        each([&](int e) {
          const T z = in.saved_values.value(0);
          from_y(e, act.inverse(z), act.derivative(z));
        });
    });
  }
}

/// Replaces a saved value before the activation by its z.
template <bool kResidual, class S, class Act, class Channels>
__device__ __forceinline__ void recompute_z(const BackwardArguments<S>& arguments, const Act& activation,
                                            const Channels& channels, int64_t at, GradientInputs<S, 1>& in) {
  using T = accumulate_t<S>;
  forget_memory();
  in.saved_values.load(arguments.saved_values + at);
  const T saved = in.saved_values.value(0);
  T y = y_before(arguments, channels, 0, saved, saved - channels.center(0));
  if constexpr (kResidual)
    if (arguments.residual) {
      in.residual.load(arguments.residual + at);
      y += residual_part(arguments, in);
    }
  activation.dispatch([&](const auto& act) { in.saved_values.set_value(0, act.forward(y)); });
}

}  // namespace palimpsest::kernels::cuda::abn_detail
