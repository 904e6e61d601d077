#pragma once

#include "palimpsest/kernels/cuda/abn/straight_gradient.cuh"
#include "palimpsest/kernels/cuda/device/ring.cuh"

/// The two passes of backward: the sums, which are the gradients of weight and bias, then dx.
namespace palimpsest::kernels::cuda::abn_detail {

/// Whether a thread holds its coefficients in registers. Else it reads them from shared memory for each
/// vector.
template <class Walk, class Act, bool kResidual>
inline constexpr bool kHoldsCoefficients =
    Walk::kChannels == 1 || (!Act::kLarge && !kResidual && Walk::kBlockThreads != kResidentThreads);

/// Blocks of kThreads threads per multiprocessor. 16-bit values of straight activations get 80 registers in
/// place of 64, for coefficients of eight channels or for the residual: three blocks in place of four.
template <class Walk, class Act, bool kResidual>
inline constexpr int kBlocksOf =
    !Act::kLarge && Walk::kVector == 8 && (Walk::kChannels == 8 || kResidual) ? 3 : 4;

/// Vectors that a thread has under way: as many loads as its registers can take.
template <class Walk, class S, class Act, bool kResidual>
struct BackwardUnroll {
  static constexpr bool kOne =
      sizeof(S) == 8 || Act::kLarge || kResidual || Walk::kBlockThreads == kResidentThreads;
  static constexpr int kVectors = kOne ? 1 : 2;
};

/// Reads the saved values and dz from global memory.
template <class S>
struct GradientsFromMemory {
  const S* saved_values;
  const S* dz;

  template <int V>
  __device__ __forceinline__ void read(GradientInputs<S, V>& to, int64_t at, int) const {
    to.saved_values.load(saved_values + at);
    if constexpr (!kReadsAgain<S>) to.dz.load(dz + at);
  }
  __device__ __forceinline__ void read_edge(GradientInputs<S, 1>& to, int64_t at, int) const {
    to.saved_values.load(saved_values + at);
    if constexpr (!kReadsAgain<S>) to.dz.load(dz + at);
  }
};

/// Calls work(in, at) for the vectors and the single values of a segment of the walk's panel. `from` provides
/// the saved values and dz.
template <bool kResidual, class Act, class Walk, class S, class From, class Work>
__device__ __forceinline__ void read_share(const Walk& walk, const Cut& cut, int segment,
                                           const BackwardArguments<S>& arguments, const From& from,
                                           const Work& work) {
  constexpr int kUnroll = BackwardUnroll<Walk, S, Act, kResidual>::kVectors, V = Walk::kVector;
  const auto read_residual = [&](auto& in, int64_t at) {
    if constexpr (kResidual)
      if (!Act::kLarge || arguments.residual) in.residual.load(arguments.residual + at);
  };
  const auto do_vectors = [&](const int64_t(&at)[kUnroll], int serial) {
    if constexpr (!kHoldsCoefficients<Walk, Act, kResidual>) forget_memory();
    GradientInputs<S, V> in[kUnroll];
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      if (at[u] < 0) continue;
      from.read(in[u], at[u], serial + u * walk.step());
      read_residual(in[u], at[u]);
    }
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u)
      if (at[u] >= 0) work(in[u], at[u]);
  };
  const auto do_edge = [&](int64_t at, int serial) {
    if constexpr (Walk::kChannels == 1) {
      GradientInputs<S, 1> in;
      from.read_edge(in, at, serial);
      read_residual(in, at);
      work(in, at);
    }
  };
  walk.template vectors<kUnroll>(cut, segment, do_vectors);
  walk.edges(cut.first_edge(segment), cut.first_edge(segment + 1), do_edge);
}

/// Reads the saved values, dz and the residual through a ring, kBatches - 1 vectors of each ahead.
template <class Walk, class S, bool kResidual>
struct GradientsAhead {
  static constexpr int kTensors = 2 + kResidual, V = Walk::kVector;
  using Slots = Ring<S, V, kTensors, 1, kResidual ? 3 : 4, Walk::kBlockThreads>;
  Slots& ring;

  template <bool kHolds, class Work>
  __device__ __forceinline__ void read(int slot, const Work& work) const {
    if constexpr (!kHolds) forget_memory();
    GradientInputs<S, V> in;
    ring.read(in.saved_values, slot, 0, 0);
    ring.read(in.dz, slot, 0, 1);
    if constexpr (kResidual) ring.read(in.residual, slot, 0, 2);
    work(in, 0);
  }

  /// Calls work(in, at) for the vectors of a segment, with an `at` that means nothing.
  template <bool kHolds, class Work>
  __device__ __forceinline__ void read_share(const Walk& walk, const Cut& cut, int segment,
                                             const BackwardArguments<S>& arguments, const Work& work) const {
    walk.template vectors_ahead<1, Slots::kBatches>(
        cut, segment,
        [&](const int64_t(&at)[1], int slot) {
          ring.start(slot, 0, 0, arguments.saved_values + at[0]);
          ring.start(slot, 0, 1, arguments.dz + at[0]);
          if constexpr (kResidual) ring.start(slot, 0, 2, arguments.residual + at[0]);
        },
        [&](int slot, int) { read<kHolds>(slot, work); }, [&](int slot) { read<kHolds>(slot, work); });
  }
};

/// Returns the sums of this thread over a segment of the walk's panel. `from` provides the saved values and
/// dz.
template <bool kResidual, class Walk, class S, class Act, class Channels, class From>
__device__ __forceinline__ ThreadSums<accumulate_t<S>, Walk::kChannels> thread_sums(
    const Walk& walk, const Cut& cut, int segment, const BackwardArguments<S>& arguments,
    const Act& activation, const Channels& channels, const From& from) {
  constexpr int kChannels = Walk::kChannels;
  using T = accumulate_t<S>;
  ThreadSums<T, kChannels> sums;
  const StraightCenters<kHoldsCoefficients<Walk, Act, kResidual> && !Act::kLarge, T, kChannels, Channels>
      center(channels);
  const auto add = [&]<int V>(GradientInputs<S, V>& in, int64_t at) {
    if constexpr (Act::kLarge) {
      for_each_gradient<kResidual, false>(
          arguments, activation, channels, at, in,
          [&](int e, T dy, T t, T) {
            // The sums of channels rotate with the values. One channel has all values.
            static_cast<void>(e);
            sums.dy[0] += dy;
            sums.dy_t[0] += dy * t;
          },
          [&] { sums.rotate(); });
    } else {
      add_straight_gradient<kResidual>(arguments, activation, channels, center, in, sums);
    }
  };
  if constexpr (requires { typename From::Slots; })
    from.template read_share<kHoldsCoefficients<Walk, Act, kResidual>>(walk, cut, segment, arguments, add);
  else
    read_share<kResidual, Act>(walk, cut, segment, arguments, from, add);
  return sums;
}

template <class S>
__device__ __forceinline__ void write_gradients(const BackwardArguments<S>& arguments, int64_t c,
                                                ParameterGradients<accumulate_t<S>> gradients) {
  arguments.sum_dy[c] = gradients.bias;
  arguments.sum_dy_xhat[c] = gradients.weight;
}

/// abn_backward_reduce. Grid: as statistics_kernel. Shared: 4 to 10 KB for coefficients and sums, 32 or 36 KB for a ring. Registers:
/// as many as kBlocksOf blocks per multiprocessor leave.
template <class S, class Walk, class Act, bool kResidual>
__global__ void __launch_bounds__(kThreads, kBlocksOf<Walk, Act, kResidual>)
    backward_reduce_kernel(Cut cut, BackwardArguments<S> arguments, Act activation, Workspace workspace) {
  using T = accumulate_t<S>;
  constexpr int kPanel = Walk::kPanelChannels;
  PALIMPSEST_SHARED(coefficients, GradientCoefficients<T, Walk::kChannels, kPanel>);
  PALIMPSEST_SHARED(place, BlockPlace[1]);
  start_next_launch();
  int panel = static_cast<int>(blockIdx.x % cut.panels), segment = static_cast<int>(blockIdx.x / cut.panels);
  if (threadIdx.x == 0) place[0] = {panel, segment};
  const int j = static_cast<int>(threadIdx.x), wide = Walk::panel_channels(cut);
  if (j < wide && int64_t{panel} * wide + j < cut.shape.c)
    coefficients.set_center(j, arguments, int64_t{panel} * wide + j);
  __syncthreads();
  const Walk walk(cut, panel);
  const ThreadChannels<T, Walk::kChannels, kPanel, Walk::kVector / Walk::kChannels> channels{
      coefficients, walk.first_channel()};
  const auto own = [&] {
    if constexpr (kReadsAhead<Walk, S> && !Act::kLarge) {
      using Ahead = GradientsAhead<Walk, S, kResidual>;
      PALIMPSEST_SHARED(ring, typename Ahead::Slots);
      return thread_sums<kResidual>(walk, cut, segment, arguments, activation, channels, Ahead{ring});
    } else {
      return thread_sums<kResidual>(walk, cut, segment, arguments, activation, channels,
                                    GradientsFromMemory<S>{arguments.saved_values, arguments.dz});
    }
  }();
  GradientSums sums = block_sums<Walk>(own, cut.wide);
  panel = place[0].panel, segment = place[0].segment;
  const int64_t channel = int64_t{panel} * wide + j;
  const bool has_channel = j < wide && channel < cut.shape.c;
  if (cut.segments > 1) {
    auto* const records = static_cast<GradientSums*>(workspace.records);
    if (has_channel) records[segment * cut.shape.c + channel] = sums;
    if (!is_last_block(workspace.counters + panel, static_cast<unsigned>(cut.segments))) return;
    sums = sum_segments(records, cut.segments, cut.shape.c, int64_t{panel} * wide, wide);
  }
  if (has_channel) write_gradients(arguments, channel, parameter_gradients(arguments, channel, sums));
}

/// apply_straight_gradient for activations whose arithmetic takes many registers. Each result takes the
/// registers of the input that it replaces.
template <bool kResidual, class S, int V, class Act, class Channels>
__device__ __forceinline__ void apply_large_gradient(const BackwardArguments<S>& arguments,
                                                     const Act& activation, const Channels& channels,
                                                     int64_t at, GradientInputs<S, V>& in) {
  using T = accumulate_t<S>;
  constexpr int kPerChannel = V == 1 ? 1 : Channels::kValues;
  constexpr bool kSeparately = kReadsAgain<S>;  // z after dx, whose registers are free by then
  for_each_gradient<kResidual, !kSeparately>(
      arguments, activation, channels, at, in,
      [&](int e, T dy, T t, T z) {
        // dx does not depend on t if statistics are frozen, and t may be infinite.
        in.dz.set_value(0, channels.dx(e / kPerChannel, dy, arguments.frozen ? T(0) : t));
        if (!kSeparately && arguments.z) in.saved_values.set_value(0, z);
        if constexpr (kResidual)
          if (arguments.dresidual)
            in.residual.set_value(0, in.residual.value(0) <= arguments.residual_floor ? T(0) : dy);
      },
      [] {});
  if (kResidual && arguments.dresidual) in.residual.store(arguments.dresidual + at);
  in.dz.store(arguments.dx + at);
  if (!arguments.z) return;
  if constexpr (kSeparately && !Act::kBranches)
    recompute_z<kResidual>(arguments, activation, channels, at, in);
  in.saved_values.store(arguments.z + at);
}

/// Sets the coefficients of dx as backward_apply_share needs them.
template <class S, class Act, class Coefficients>
__device__ __forceinline__ void set_dx(Coefficients& coefficients, int j,
                                       const BackwardArguments<S>& arguments, int64_t c,
                                       const ParameterGradients<accumulate_t<S>>& sums) {
  coefficients.template set_dx<!Act::kLarge && kFoldsCenter<S>>(j, arguments, c, sums);
}

/// Does a segment of the walk's panel. `from` provides the saved values and dz.
template <bool kResidual, class Walk, class S, class Act, class Channels, class From>
__device__ __forceinline__ void backward_apply_share(const Walk& walk, const Cut& cut, int segment,
                                                     const BackwardArguments<S>& arguments,
                                                     const Act& activation, const Channels& channels,
                                                     const From& from) {
  if constexpr (Act::kLarge) {
    read_share<kResidual, Act>(walk, cut, segment, arguments, from,
                               [&]<int V>(GradientInputs<S, V>& in, int64_t at) {
                                 apply_large_gradient<kResidual>(arguments, activation, channels, at, in);
                               });
  } else {
    constexpr int kChannels = Walk::kChannels;
    const StraightCoefficients<kHoldsCoefficients<Walk, Act, kResidual>, S, kChannels, Channels> coefficients(
        channels);
    read_share<kResidual, Act>(walk, cut, segment, arguments, from,
                               [&]<int V>(GradientInputs<S, V>& in, int64_t at) {
                                 apply_straight_gradient<kResidual, kChannels>(
                                     arguments, activation, channels, coefficients, at, in);
                               });
  }
}

/// abn_backward_apply. Grid, direction and registers as apply_kernel. Shared: the panel's coefficients, 96
/// bytes (NCHW) to 1.5 KB.
template <class S, class Walk, class Act, bool kResidual>
__global__ void __launch_bounds__(kThreads, kBlocksOf<Walk, Act, kResidual>)
    backward_apply_kernel(Cut cut, BackwardArguments<S> arguments, Act activation) {
  using T = accumulate_t<S>;
  constexpr int kPanel = Walk::kPanelChannels;
  PALIMPSEST_SHARED(coefficients, GradientCoefficients<T, Walk::kChannels, kPanel>);
  const int block =
      static_cast<int>(kReadsAhead<Walk, S> && !Act::kLarge ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  const int panel = block % cut.panels, segment = block / cut.panels;
  const int j = static_cast<int>(threadIdx.x), wide = Walk::panel_channels(cut);
  const int64_t channel = int64_t{panel} * wide + j;
  wait_for_launch_before();
  if (j < wide && channel < cut.shape.c) {
    coefficients.set_center(j, arguments, channel);
    ParameterGradients<T> sums{};
    if (!arguments.frozen) sums = {arguments.sum_dy[channel], arguments.sum_dy_xhat[channel]};
    set_dx<S, Act>(coefficients, j, arguments, channel, sums);
  }
  __syncthreads();
  const Walk walk(cut, panel);
  const ThreadChannels<T, Walk::kChannels, kPanel, Walk::kVector / Walk::kChannels> channels{
      coefficients, walk.first_channel()};
  backward_apply_share<kResidual>(walk, cut, segment, arguments, activation, channels,
                                  GradientsFromMemory<S>{arguments.saved_values, arguments.dz});
}

}  // namespace palimpsest::kernels::cuda::abn_detail
