#pragma once

#include "palimpsest/kernels/cuda/abn/activation.cuh"
#include "palimpsest/kernels/cuda/abn/table.cuh"
#include "palimpsest/kernels/cuda/device/panel_values.cuh"
#include "palimpsest/kernels/cuda/device/ring.cuh"
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

/// The coefficients of a panel's channels, in shared memory.
template <class T, int kChannels, int kPanel>
struct PanelForward {
  PanelValues<T, kChannels, kPanel> mean, scale, shift, weight, bias;

  __device__ __forceinline__ void set(int j, const ForwardCoefficients<T>& values) {
    mean[j] = values.mean, scale[j] = values.scale, shift[j] = values.shift;
    weight[j] = values.weight, bias[j] = values.bias;
  }
  /// Sets those of place j to those of place `from_j` in `from`.
  template <class From>
  __device__ __forceinline__ void copy(int j, From& from, int from_j) {
    mean[j] = from.mean[from_j], scale[j] = from.scale[from_j], shift[j] = from.shift[from_j];
    weight[j] = from.weight[from_j], bias[j] = from.bias[from_j];
  }
};

/// The coefficients of a thread's channels; kHeld: in registers.
template <bool kHeld, class T, int kChannels, class Panel>
struct ThreadCoefficients {
  static constexpr int kCount = kHeld ? kChannels : 1;
  T means[kCount], scales[kCount], shifts[kCount];
  const Panel& panel;
  int first;

  __device__ __forceinline__ ThreadCoefficients(const Panel& of_panel, int first_channel)
      : panel(of_panel), first(first_channel) {
    if constexpr (kHeld) {
      panel.mean.read(first, means);
      panel.scale.read(first, scales);
      panel.shift.read(first, shifts);
    }
  }
  __device__ __forceinline__ T scaled(int c, T x) const {
    if constexpr (kHeld)
      return (x - means[c]) * scales[c] + shifts[c];
    else
      return (x - panel.mean.of_thread(first, c)) * panel.scale.of_thread(first, c) +
             panel.shift.of_thread(first, c);
  }
  /// From shared memory, because they are rarely needed.
  __device__ __forceinline__ T weight(int c) const { return panel.weight.of_thread(first, c); }
  __device__ __forceinline__ T bias(int c) const { return panel.bias.of_thread(first, c); }
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

/// Returns whether there is a residual. Kernels of straight activations know it when they are compiled.
template <bool kResidual, class Act, class Arguments>
__device__ __forceinline__ bool has_residual(const Arguments& arguments) {
  return kResidual && (!Act::kLarge || arguments.residual);
}

/// Writes z, and the values saved beside z, for the V values `in` at offset `at`.
template <bool kResidual, bool kHalves, int kChannels, class S, int V, class Coefficients, class Act>
__device__ __forceinline__ void apply_values(const ApplyArguments<S>& arguments, const Act& activation,
                                             const Coefficients& coefficients, int64_t at,
                                             const Stored<S, V>& in, const Stored<S, V>& residual) {
  using T = accumulate_t<S>;
  constexpr int kPerChannel = V / kChannels;
  // Half of a vector at once saves registers.
  constexpr int kCount = kHalves && V > 2 ? V / 2 : V;
  unsigned bits = 0;
  Stored<S, V> aside, z;
  // Spelled out, because nvcc makes 3 % more instructions of saves_aside(arguments.saved).
  const bool saves = arguments.saved == Saved::kPreActivation || arguments.saved == Saved::kNormalized;
  PALIMPSEST_UNROLL
  for (int first = 0; first < V; first += kCount) {
    Values<S, kCount> y = in.template values<kCount>(first);
    PALIMPSEST_UNROLL
    for (int i = 0; i < kCount; ++i) y[i] = coefficients.scaled((first + i) / kPerChannel, y[i]);
    if (saves) {
      // z is computed from the rounded values, so that backward can recompute it bit for bit.
      aside.set(y, first);
      y = aside.template values<kCount>(first);
      if (arguments.saved == Saved::kNormalized) {
        forget_memory();  // keeps weight and bias out of the registers of the other cases
        PALIMPSEST_UNROLL
        for (int i = 0; i < kCount; ++i) {
          const int c = (first + i) / kPerChannel;
          y[i] = y[i] * coefficients.weight(c) + coefficients.bias(c);
        }
      }
    }
    if (has_residual<kResidual, Act>(arguments)) {
      const Values<S, kCount> r = residual.template values<kCount>(first);
      PALIMPSEST_UNROLL
      for (int i = 0; i < kCount; ++i) y[i] += r[i] <= arguments.residual_floor ? T(0) : r[i];
    }
    if constexpr (Act::kLarge) {
      PALIMPSEST_UNROLL
      for (int i = 0; i < kCount; ++i) bits |= (y[i] > arguments.minimum ? 1u : 0u) << (first + i);
      activation.dispatch([&](const auto& act) {
        PALIMPSEST_UNROLL
        for (int i = 0; i < kCount; ++i) y[i] = act.forward(y[i]);
      });
      z.set(y, first);
    } else {
      activation.with_forward([&](const auto& forward) {
        PALIMPSEST_UNROLL
        for (int i = 0; i < kCount; ++i) y[i] = forward(y[i]);
        z.set(y, first);
      });
    }
  }
  if constexpr (Act::kLarge)  // no straight activation has two curved branches
    if (arguments.saved == Saved::kOutputBit)
      set_branch_bits<V, V == 8 && kChannels == 8>(arguments.branch, at, bits);
  if (saves) aside.store(arguments.saved_values + at);
  z.store(arguments.z + at);
}

/// Blocks of kThreads threads per multiprocessor: three instead of four, with 80 registers instead of 64, for
/// eight values at once that have a residual besides.
template <class Walk, class Act, bool kResidual>
inline constexpr int kApplyBlocksOf = !Act::kLarge && Walk::kVector == 8 && kResidual ? 3 : 4;

/// Vectors that a thread has under way: as many loads as its registers can take.
template <class Walk, class S, class Act, bool kResidual>
struct ApplyUnroll {
  static constexpr bool kPlane = Walk::kChannels == 1, kResident = Walk::kBlockThreads == kResidentThreads;
  static constexpr bool kFits = kPlane || (!kResident && (!kResidual || Walk::kChannels == 8));
  static constexpr bool kOne = sizeof(S) == 8 || Act::kLarge || !kFits;
  static constexpr bool kShort = kPlane || Walk::kVector < kLanes<S>;  // few coefficients
  static constexpr int kVectors = kOne ? 1 : kShort && !kResidual && !kResident ? 4 : 2;
};

/// Does a segment of the walk's panel. `from` provides x. kResidual: there may be a residual;
/// arguments.residual says.
template <bool kResidual, class Walk, class S, class Act, class Panel, class From>
__device__ __forceinline__ void apply_share(const Walk& walk, const Cut& cut, int segment,
                                            const ApplyArguments<S>& arguments, const Act& activation,
                                            const Panel& panel, const From& from) {
  constexpr int kUnroll = ApplyUnroll<Walk, S, Act, kResidual>::kVectors, V = Walk::kVector;
  // Where 64 registers do not suffice for long arithmetic, strips, or a residual besides a walk over planes
  // or a stash.
  constexpr bool kHalves =
      ((Act::kLarge || Walk::kStrips) && V == 8) ||
      (kResidual && (Walk::kBlockThreads == kResidentThreads || (Walk::kChannels == 1 && V < 8)));
  constexpr int kChannels = Walk::kChannels;
  constexpr bool kHeld = !Act::kLarge || kChannels < 8;
  const ThreadCoefficients<kHeld, accumulate_t<S>, kChannels, Panel> coefficients(panel,
                                                                                  walk.first_channel());
  const auto do_vectors = [&](const int64_t(&at)[kUnroll], int serial) {
    if constexpr (!kHeld) forget_memory();
    Stored<S, V> in[kUnroll], residual[kUnroll];
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      if (at[u] < 0) continue;
      from.read(in[u], at[u], serial + u * walk.step());
      if (has_residual<kResidual, Act>(arguments)) residual[u].load(arguments.residual + at[u]);
    }
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u)
      if (at[u] >= 0)
        apply_values<kResidual, kHalves, kChannels>(arguments, activation, coefficients, at[u], in[u],
                                                    residual[u]);
  };
  const auto do_edge = [&](int64_t at, int serial) {
    if constexpr (Walk::kChannels == 1) {
      Stored<S, 1> in, residual;
      from.read_edge(in, at, serial);
      if (has_residual<kResidual, Act>(arguments)) residual.load(arguments.residual + at);
      apply_values<kResidual, kHalves, kChannels>(arguments, activation, coefficients, at, in, residual);
    }
  };
  walk.template vectors<kUnroll>(cut, segment, do_vectors);
  walk.edges(cut.first_edge(segment), cut.first_edge(segment + 1), do_edge);
}

/// abn_apply. Grid: one block of kThreads threads per segment of a panel. Shared: the panel's coefficients,
/// 640 to 1280 bytes in channels-last. Registers: as many as kApplyBlocksOf blocks per multiprocessor leave.
/// Blocks begin where the pass before ended, whose last values are still in the L2 cache: at the beginning of the tensor
/// if that read ahead, else at the end.
template <class S, class Walk, class Act, bool kResidual>
__global__ void __launch_bounds__(kThreads, kApplyBlocksOf<Walk, Act, kResidual>)
    apply_kernel(Cut cut, ApplyArguments<S> arguments, Act activation) {
  constexpr int kPanel = Walk::kPanelChannels;
  PALIMPSEST_SHARED(coefficients, PanelForward<accumulate_t<S>, Walk::kChannels, kPanel>);
  const int block = static_cast<int>(kReadsAhead<Walk, S> ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  const int panel = block % cut.panels, segment = block / cut.panels;
  const int j = static_cast<int>(threadIdx.x), wide = Walk::panel_channels(cut);
  const int64_t channel = int64_t{panel} * wide + j;
  wait_for_launch_before();
  if (j < wide && channel < cut.shape.c) coefficients.set(j, coefficients_of(arguments, channel));
  __syncthreads();
  const Walk walk(cut, panel);
  apply_share<kResidual>(walk, cut, segment, arguments, activation, coefficients, FromMemory<S>{arguments.x});
}

}  // namespace palimpsest::kernels::cuda::abn_detail
