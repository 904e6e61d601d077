#pragma once

#include "palimpsest/kernels/cuda/abn/activation.cuh"
#include "palimpsest/kernels/cuda/abn/table.cuh"
#include "palimpsest/kernels/formulas/abn_formulas.h"

/// Computes z, and the values that are saved beside z, from x and the statistics.
namespace palimpsest::kernels::cuda::abn_detail {

template <class S>
__device__ __forceinline__ AbnChannel<accumulate_t<S>> channel_of(const ApplyArguments<S>& arguments,
                                                                  int64_t c) {
  return {arguments.weight, arguments.bias, arguments.mean, arguments.inv_std, c};
}

/// Returns the coefficients of channel c, from the statistics in memory.
template <class S>
__device__ __forceinline__ ForwardCoefficients<accumulate_t<S>> coefficients_of(
    const ApplyArguments<S>& arguments, int64_t c) {
  const AbnChannel<accumulate_t<S>> channel = channel_of(arguments, c);
  // The constants let nvcc remove the other cases of recompute_coefficients.
  switch (arguments.source) {
    case Saved::kPreActivation:
      return recompute_coefficients(Saved::kPreActivation, channel);
    case Saved::kNormalized:
      return recompute_coefficients(Saved::kNormalized, channel);
    default:
      return forward_coefficients(arguments.saved, channel);
  }
}

/// The coefficients of a thread's channels.
template <class T, int kChannels>
struct ThreadCoefficients {
  T mean[kChannels], scale[kChannels], shift[kChannels];
  const ForwardCoefficients<T>* shared;  ///< in shared memory: weight and bias are rarely needed

  __device__ __forceinline__ explicit ThreadCoefficients(const ForwardCoefficients<T>* of_channels)
      : shared(of_channels) {
    PALIMPSEST_UNROLL
    for (int c = 0; c < kChannels; ++c) {
      mean[c] = of_channels[c].mean;
      scale[c] = of_channels[c].scale;
      shift[c] = of_channels[c].shift;
    }
  }
};

/// Sets the bits of V values from offset `at` on. Where vectors fill whole bytes, no other thread writes
/// them. Else neighbours share words, in which the order of setting bits does not matter.
template <int V, bool kWholeBytes>
__device__ __forceinline__ void set_branch_bits(uint8_t* branch, int64_t at, unsigned bits) {
  if constexpr (kWholeBytes) {
    branch[at / 8] = static_cast<uint8_t>(bits);
  } else {
    auto* const word = reinterpret_cast<unsigned*>(branch) + at / 32;
    const auto shift = static_cast<unsigned>(at % 32);
    if (bits) atomicOr(word, bits << shift);
    if (V > 1 && shift > 32u - V && bits >> (32u - shift)) atomicOr(word + 1, bits >> (32u - shift));
  }
}

/// Writes z, and the values saved beside z, for the V values `in` at offset `at`.
template <bool kResidual, class S, int V, int kChannels, class Act>
__device__ __forceinline__ void apply_values(
    const ApplyArguments<S>& arguments, const Act& activation,
    const ThreadCoefficients<accumulate_t<S>, kChannels>& coefficients, int64_t at, const Stored<S, V>& in,
    const Stored<S, V>& residual) {
  using T = accumulate_t<S>;
  constexpr int kPerChannel = kChannels == 1 ? V : 1;
  Values<S, V> y = in.values();
  PALIMPSEST_UNROLL
  for (int i = 0; i < V; ++i) {
    const int c = i / kPerChannel;
    y[i] = (y[i] - coefficients.mean[c]) * coefficients.scale[c] + coefficients.shift[c];
  }
  Stored<S, V> out;
  // Spelled out, because nvcc makes 3 % more instructions of saves_aside(arguments.saved).
  if (arguments.saved == Saved::kPreActivation || arguments.saved == Saved::kNormalized) {
    // z is computed from the rounded values, so that backward can recompute it bit for bit.
    out.set(y);
    out.store(arguments.saved_values + at);
    y = out.values();
    if (arguments.saved == Saved::kNormalized) {
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; ++i) {
        const ForwardCoefficients<T>& channel = coefficients.shared[i / kPerChannel];
        y[i] = y[i] * channel.weight + channel.bias;
      }
    }
  }
  if (kResidual && arguments.residual) {
    const Values<S, V> r = residual.values();
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) y[i] += arguments.relu_residual && r[i] <= T(0) ? T(0) : r[i];
  }
  if (arguments.saved == Saved::kOutputBit) {
    unsigned bits = 0;
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) bits |= (y[i] > arguments.minimum ? 1u : 0u) << i;
    set_branch_bits<V, V == 8 && kChannels == 8>(arguments.branch, at, bits);
  }
  activation.dispatch([&](const auto& act) {
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) y[i] = act.forward(y[i]);
  });
  out.set(y);
  out.store(arguments.z + at);
}

/// Reads x from global memory.
template <class S>
struct FromMemory {
  const S* x;

  template <int V>
  __device__ __forceinline__ void vector(Stored<S, V>& to, int64_t at, int) const {
    to.load(x + at);
  }
  __device__ __forceinline__ void edge(Stored<S, 1>& to, int64_t at, int) const { to.load(x + at); }
};

/// Vectors that a thread has under way: as many loads as fit into 64 registers, with which half of all warps
/// can run.
template <class Walk, class S, class Act, bool kResidual>
struct ApplyUnroll {
  static constexpr bool kPlane = Walk::kChannels == 1, kResident = Walk::kBlockThreads == kResidentThreads;
  static constexpr bool kOne = sizeof(S) == 8 || Act::kLarge || (!kPlane && (kResidual || kResident));
  static constexpr int kVectors = kOne ? 1 : kPlane && !kResidual && !kResident ? 4 : 2;
};

/// Does a segment of the walk's panel. `from` provides x. kResidual: there may be a residual;
/// arguments.residual says.
template <bool kResidual, class Walk, class S, class Act, class From>
__device__ __forceinline__ void apply_share(const Walk& walk, const Cut& cut, int segment,
                                            const ApplyArguments<S>& arguments, const Act& activation,
                                            const ForwardCoefficients<accumulate_t<S>>* of_channels,
                                            const From& from) {
  constexpr int kUnroll = ApplyUnroll<Walk, S, Act, kResidual>::kVectors, V = Walk::kVector;
  const ThreadCoefficients<accumulate_t<S>, Walk::kChannels> coefficients(of_channels);
  const auto do_vectors = [&](const int64_t(&at)[kUnroll], int serial) {
    Stored<S, V> in[kUnroll], residual[kUnroll];
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      if (at[u] < 0) continue;
      from.vector(in[u], at[u], serial + u * Walk::kBlockThreads);
      if constexpr (kResidual)
        if (arguments.residual) residual[u].load(arguments.residual + at[u]);
    }
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u)
      if (at[u] >= 0) apply_values<kResidual>(arguments, activation, coefficients, at[u], in[u], residual[u]);
  };
  const auto do_edge = [&](int64_t at, int serial) {
    if constexpr (Walk::kChannels == 1) {
      Stored<S, 1> in, residual;
      from.edge(in, at, serial);
      if constexpr (kResidual)
        if (arguments.residual) residual.load(arguments.residual + at);
      apply_values<kResidual>(arguments, activation, coefficients, at, in, residual);
    }
  };
  walk.template vectors<kUnroll>(cut.first_piece(segment), cut.first_piece(segment + 1), do_vectors);
  walk.edges(cut.first_edge(segment), cut.first_edge(segment + 1), do_edge);
}

/// abn_apply. Grid: one block of kThreads threads per segment of a panel. Shared: the panel's coefficients,
/// 640 to 1280 bytes in channels-last. Registers: at most 64, so that four blocks run per multiprocessor.
/// Blocks go backwards through the tensor: the last values that the pass before read are still in the L2
/// cache.
template <class S, class Walk, class Act, bool kResidual>
__global__ void __launch_bounds__(kThreads, 4)
    apply_kernel(Cut cut, ApplyArguments<S> arguments, Act activation) {
  constexpr int kPanel = Walk::kPanelChannels;
  PALIMPSEST_SHARED(coefficients, ForwardCoefficients<accumulate_t<S>>[kPanel]);
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int panel = block % cut.panels, segment = block / cut.panels;
  const int64_t channel = int64_t{panel} * kPanel + threadIdx.x;
  if (threadIdx.x < kPanel && channel < cut.shape.c)
    coefficients[threadIdx.x] = coefficients_of(arguments, channel);
  __syncthreads();
  const Walk walk(cut, panel);
  apply_share<kResidual>(walk, cut, segment, arguments, activation, coefficients + walk.first_channel(),
                         FromMemory<S>{arguments.x});
}

}  // namespace palimpsest::kernels::cuda::abn_detail
