#pragma once

#include "palimpsest/kernels/cuda/abn/activation.cuh"
#include "palimpsest/kernels/cuda/abn/table.cuh"

namespace palimpsest::kernels::cuda {

/// k = (x - mean) * scale + shift, and y = k, or y = k * weight + bias where k = x-hat is kept. `mean` is
/// subtracted first, because x * scale + (shift - mean * scale) loses all digits where |mean| is large
/// against the standard deviation; shift carries the part of the mean that does not fit into a T.
template <class T>
struct Coefficients {
  T mean, scale, shift, weight, bias;
};

/// Those of channel c, whose statistics are `mean` and `inv_std`.
template <class S>
__device__ __forceinline__ Coefficients<MathsOf<S>> coefficients_of(const ApplyArguments<S>& t, int64_t c,
                                                                    double mean, double inv_std) {
  using T = MathsOf<S>;
  const T weight = t.weight ? t.weight[c] : T(1), bias = t.bias ? t.bias[c] : T(0);
  // From what was kept: statistics that change nothing. Adding -0 does not even change a zero's sign.
  if (t.source == Source::kPreActivation) return {0, 1, T(-0.0), 0, 0};
  if (t.source == Source::kNormalized) return {0, weight, bias, 0, 0};
  const bool normalized = t.keep == Keep::kNormalized;
  const double scale = (normalized ? 1 : static_cast<double>(weight)) * inv_std;
  const double low = mean - static_cast<double>(static_cast<T>(mean));
  return {static_cast<T>(mean), static_cast<T>(scale),
          static_cast<T>((normalized ? 0 : static_cast<double>(bias)) - low * scale), weight, bias};
}

/// The coefficients of the channels that a thread works on.
template <class T, int kChannels>
struct ThreadCoefficients {
  T mean[kChannels], scale[kChannels], shift[kChannels];
  const Coefficients<T>* shared;  ///< the rest is rarely needed

  __device__ __forceinline__ explicit ThreadCoefficients(const Coefficients<T>* of_channels)
      : shared(of_channels) {
    PALIMPSEST_UNROLL
    for (int c = 0; c < kChannels; ++c) {
      mean[c] = of_channels[c].mean;
      scale[c] = of_channels[c].scale;
      shift[c] = of_channels[c].shift;
    }
  }
};

/// Sets the bits of V values from offset `at` on. Where vectors fill bytes, nobody else writes these; else
/// neighbours share words, in which the order of setting bits does not matter.
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

/// z, and what is kept, of the V values `in` at offset `at`.
template <bool kResidual, class S, int V, int kChannels, class Act>
__device__ __forceinline__ void apply_values(const ApplyArguments<S>& t, const Act& activation,
                                             const ThreadCoefficients<MathsOf<S>, kChannels>& k, int64_t at,
                                             const Stored<S, V>& in, const Stored<S, V>& residual) {
  using T = MathsOf<S>;
  constexpr int kEach = kChannels == 1 ? V : 1;
  Values<S, V> y = in.values();
  PALIMPSEST_UNROLL
  for (int i = 0; i < V; ++i) y[i] = (y[i] - k.mean[i / kEach]) * k.scale[i / kEach] + k.shift[i / kEach];
  Stored<S, V> out;
  if (t.keep == Keep::kPreActivation || t.keep == Keep::kNormalized) {
    // From what is stored: then z can be made again from it, bit for bit.
    out.set(y);
    out.store(t.kept + at);
    y = out.values();
    if (t.keep == Keep::kNormalized) {
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; ++i) y[i] = y[i] * k.shared[i / kEach].weight + k.shared[i / kEach].bias;
    }
  }
  if (kResidual && t.residual) {
    const Values<S, V> r = residual.values();
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) y[i] += t.relu_residual && r[i] <= T(0) ? T(0) : r[i];
  }
  if (t.keep == Keep::kBranch) {
    unsigned bits = 0;
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) bits |= (y[i] > t.minimum ? 1u : 0u) << i;
    set_branch_bits<V, V == 8 && kChannels == 8>(t.branch, at, bits);
  }
  activation.dispatch([&](const auto& act) {
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) y[i] = act.forward(y[i]);
  });
  out.set(y);
  out.store(t.z + at);
}

/// Reads x where it lies.
template <class S>
struct FromMemory {
  const S* x;

  template <int V>
  __device__ __forceinline__ void vector(Stored<S, V>& to, int64_t at, int) const {
    to.load(x + at);
  }
  __device__ __forceinline__ void edge(Stored<S, 1>& to, int64_t at, int) const { to.load(x + at); }
};

/// Vectors that a thread has under way: as many loads as leave room for half of all warps, 64 registers each.
template <class Walk, class S, class Act, bool kResidual>
struct ApplyUnroll {
  static constexpr bool kPlane = Walk::kChannels == 1, kResident = Walk::kBlockThreads == kResidentThreads;
  static constexpr bool kOne = sizeof(S) == 8 || Act::kLarge || (!kPlane && (kResidual || kResident));
  static constexpr int kVectors = kOne ? 1 : kPlane && !kResidual && !kResident ? 4 : 2;
};

/// A segment of the walk's panel. kResidual: there may be one; t.residual says.
template <bool kResidual, class Walk, class S, class Act, class From>
__device__ __forceinline__ void apply_share(const Walk& walk, const Cut& cut, int segment,
                                            const ApplyArguments<S>& t, const Act& activation,
                                            const Coefficients<MathsOf<S>>* coefficients, const From& from) {
  constexpr int kUnroll = ApplyUnroll<Walk, S, Act, kResidual>::kVectors, V = Walk::kVector;
  const ThreadCoefficients<MathsOf<S>, Walk::kChannels> k(coefficients);
  walk.template vectors<kUnroll>(cut.first_piece(segment), cut.first_piece(segment + 1),
                                 [&](const int64_t(&at)[kUnroll], int serial) {
                                   Stored<S, V> in[kUnroll], residual[kUnroll];
                                   PALIMPSEST_UNROLL
                                   for (int u = 0; u < kUnroll; ++u) {
                                     if (at[u] < 0) continue;
                                     from.vector(in[u], at[u], serial + u * Walk::kBlockThreads);
                                     if constexpr (kResidual)
                                       if (t.residual) residual[u].load(t.residual + at[u]);
                                   }
                                   PALIMPSEST_UNROLL
                                   for (int u = 0; u < kUnroll; ++u)
                                     if (at[u] >= 0)
                                       apply_values<kResidual>(t, activation, k, at[u], in[u], residual[u]);
                                 });
  walk.edges(cut.first_edge(segment), cut.first_edge(segment + 1), [&](int64_t at, int serial) {
    if constexpr (Walk::kChannels == 1) {
      Stored<S, 1> in, residual;
      from.edge(in, at, serial);
      if constexpr (kResidual)
        if (t.residual) residual.load(t.residual + at);
      apply_values<kResidual>(t, activation, k, at, in, residual);
    }
  });
}

/// Blocks go backwards through the tensor: what the sweep before read last is still in the L2 cache.
template <class S, class Walk, class Act, bool kResidual>
__global__ void __launch_bounds__(kThreads, 4) apply_kernel(Cut cut, ApplyArguments<S> t, Act activation) {
  constexpr int kPanel = Walk::kPanelChannels;
  PALIMPSEST_SHARED(coefficients, Coefficients<MathsOf<S>>[kPanel]);
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int panel = block % cut.panels, segment = block / cut.panels;
  const int64_t channel = int64_t{panel} * kPanel + threadIdx.x;
  if (threadIdx.x < kPanel && channel < cut.shape.c)
    coefficients[threadIdx.x] =
        coefficients_of(t, channel, t.mean ? t.mean[channel] : 0, t.inv_std ? t.inv_std[channel] : 0);
  __syncthreads();
  const Walk walk(cut, panel);
  apply_share<kResidual>(walk, cut, segment, t, activation, coefficients + walk.first_channel(),
                         FromMemory<S>{t.x});
}

}  // namespace palimpsest::kernels::cuda
