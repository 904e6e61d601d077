#pragma once

#include "palimpsest/kernels/cuda/abn/gradient.cuh"

namespace palimpsest::kernels::cuda {

/// Vectors that a thread has under way: as many loads as leave room for half of all warps, 64 registers each.
template <class Walk, class S, class Act, bool kResidual>
struct BackwardUnroll {
  static constexpr bool kOne = sizeof(S) == 8 || Act::kLarge || kResidual || Walk::kChannels > 1 ||
                               Walk::kBlockThreads == kResidentThreads;
  static constexpr int kVectors = kOne ? 1 : 2;
};

/// Reads where the tensors lie.
template <class S>
struct GradientsFromMemory {
  const S* kept;
  const S* dz;

  template <int V>
  __device__ __forceinline__ void read(GradientInputs<S, V>& to, int64_t at, int) const {
    to.kept.load(kept + at);
    if constexpr (!kReadsAgain<S>) to.dz.load(dz + at);
  }
  __device__ __forceinline__ void read_edge(GradientInputs<S, 1>& to, int64_t at, int) const {
    to.kept.load(kept + at);
    if constexpr (!kReadsAgain<S>) to.dz.load(dz + at);
  }
};

/// Puts nothing by.
struct NoGradientStash {
  template <class S, int V>
  __device__ __forceinline__ void put(const GradientInputs<S, V>&, int) const {}
  template <class S>
  __device__ __forceinline__ void put_edge(const GradientInputs<S, 1>&, int) const {}
};

/// work(in, at) for the vectors and the single values of a segment of the walk's panel, read by `from`: what
/// was kept, dz and the residual. `stash` is shown all of it.
template <bool kResidual, class Act, class Walk, class S, class From, class Stash, class Work>
__device__ __forceinline__ void read_share(const Walk& walk, const Cut& cut, int segment,
                                           const BackwardArguments<S>& t, const From& from,
                                           const Stash& stash, const Work& work) {
  constexpr int kUnroll = BackwardUnroll<Walk, S, Act, kResidual>::kVectors, V = Walk::kVector;
  const auto read_residual = [&](auto& in, int64_t at) {
    if constexpr (kResidual)
      if (t.residual) in.residual.load(t.residual + at);
  };
  walk.template vectors<kUnroll>(cut.first_piece(segment), cut.first_piece(segment + 1),
                                 [&](const int64_t(&at)[kUnroll], int serial) {
                                   if constexpr (Walk::kChannels > 1) forget_memory();
                                   GradientInputs<S, V> in[kUnroll];
                                   PALIMPSEST_UNROLL
                                   for (int u = 0; u < kUnroll; ++u) {
                                     if (at[u] < 0) continue;
                                     from.read(in[u], at[u], serial + u * Walk::kBlockThreads);
                                     read_residual(in[u], at[u]);
                                     stash.put(in[u], serial + u * Walk::kBlockThreads);
                                   }
                                   PALIMPSEST_UNROLL
                                   for (int u = 0; u < kUnroll; ++u)
                                     if (at[u] >= 0) work(in[u], at[u]);
                                 });
  walk.edges(cut.first_edge(segment), cut.first_edge(segment + 1), [&](int64_t at, int serial) {
    if constexpr (Walk::kChannels == 1) {
      GradientInputs<S, 1> in;
      from.read_edge(in, at, serial);
      read_residual(in, at);
      stash.put_edge(in, serial);
      work(in, at);
    }
  });
}

/// The sums of a thread over a segment of the walk's panel.
template <class T, int kChannels>
struct ThreadSums {
  T dy[kChannels] = {}, dy_t[kChannels] = {};

  /// As Stored::turn.
  template <int kStep>
  __device__ __forceinline__ void turn() {
    if constexpr (kChannels > 1) {
      const ThreadSums from = *this;
      PALIMPSEST_UNROLL
      for (int c = 0; c < kChannels; ++c) {
        dy[c] = from.dy[(c + kStep) % kChannels];
        dy_t[c] = from.dy_t[(c + kStep) % kChannels];
      }
    }
  }
};

/// `stash` is shown all that is read.
template <bool kResidual, class Walk, class S, class Act, class Channels, class Stash>
__device__ __forceinline__ ThreadSums<MathsOf<S>, Walk::kChannels> thread_sums(
    const Walk& walk, const Cut& cut, int segment, const BackwardArguments<S>& t, const Act& activation,
    const Channels& k, const Stash& stash) {
  constexpr int kEach = Walk::kVector / Walk::kChannels;
  using T = MathsOf<S>;
  ThreadSums<T, Walk::kChannels> sums;
  const auto add = [&]<int kValues>(GradientInputs<S, kValues>& in, int64_t at) {
    for_each_gradient<kResidual, false>(
        t, activation, k, at, in,
        [&](int i, int, T dy, T away, T) {
          const int c = kValues == 1 ? 0 : i / kEach;
          sums.dy[c] += dy;
          sums.dy_t[c] += dy * away;
        },
        [&] { sums.template turn<kRolledStep<S, kValues, Act>>(); });
  };
  read_share<kResidual, Act>(walk, cut, segment, t, GradientsFromMemory<S>{t.kept, t.dz}, stash, add);
  return sums;
}

/// What the threads of a block found, put together: thread j < Walk::kPanelChannels gets the sums of the
/// panel's channel j, the others nothing of use. For all threads of the block.
template <class Walk, class T>
__device__ __forceinline__ GradientSums block_sums(const ThreadSums<T, Walk::kChannels>& own) {
  constexpr int kChannels = Walk::kChannels, kPanel = Walk::kPanelChannels;
  constexpr int kWarps = Walk::kBlockThreads / kWarp;
  if constexpr (kPanel == 1) {
    double all[2] = {static_cast<double>(own.dy[0]), static_cast<double>(own.dy_t[0])};
    block_sum<Walk::kBlockThreads>(all);
    return {all[0], all[1]};
  } else {
    constexpr int kWide = kPanel / kChannels;
    PALIMPSEST_SHARED(sums, T[2][kWarps][kPanel]);
    const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
    const int column = static_cast<int>(threadIdx.x) % kWide * kChannels;
    PALIMPSEST_UNROLL
    for (int c = 0; c < kChannels; ++c) {
      T dy = own.dy[c], dy_t = own.dy_t[c];
      PALIMPSEST_UNROLL
      for (int apart = kWarp / 2; apart >= kWide; apart /= 2) {
        dy += __shfl_xor_sync(kAllLanes, dy, apart);
        dy_t += __shfl_xor_sync(kAllLanes, dy_t, apart);
      }
      if (lane < kWide) sums[0][warp][column + c] = dy, sums[1][warp][column + c] = dy_t;
    }
    __syncthreads();
    GradientSums all = {0, 0};
    const int j = static_cast<int>(threadIdx.x) % kPanel;
    for (int w = 0; w < kWarps; ++w)
      all += {static_cast<double>(sums[0][w][j]), static_cast<double>(sums[1][w][j])};
    __syncthreads();
    return all;
  }
}

/// The sums of all of a panel's segments, `records` (segments, C), put together by one block: thread
/// j < kPanel gets those of channel first_channel + j. For all threads of the block.
template <int kPanel, int kThreads>
__device__ __forceinline__ GradientSums sum_segments(const GradientSums* records, int segments,
                                                     int64_t channels, int64_t first_channel) {
  constexpr int kParts = kThreads / kPanel;
  PALIMPSEST_SHARED(parts, GradientSums[kThreads]);
  const int j = static_cast<int>(threadIdx.x) % kPanel, part = static_cast<int>(threadIdx.x) / kPanel;
  const int64_t channel = first_channel + j;
  GradientSums own = {0, 0};
  if (channel < channels)
    for (int k = part; k < segments; k += kParts) own += records[k * channels + channel];
  parts[threadIdx.x] = own;
  __syncthreads();
  GradientSums all = {0, 0};
  if (part == 0)
    for (int i = 0; i < kParts && i < segments; ++i) all += parts[i * kPanel + j];
  __syncthreads();
  return all;
}

template <class S>
__device__ __forceinline__ void write_gradients(const BackwardArguments<S>& t, int64_t c,
                                                ParameterGradients<MathsOf<S>> g) {
  t.sum_dy[c] = g.bias;
  t.sum_dy_xhat[c] = g.weight;
}

/// Where a block is at work, put by: what is used again after the sweep only would take registers all
/// through.
struct BlockPlace {
  int panel, segment;
};

/// Block b: segment b / panels of panel b % panels, as statistics_kernel has it.
template <class S, class Walk, class Act, bool kResidual>
__global__ void __launch_bounds__(kThreads, 4)
    backward_reduce_kernel(Cut cut, BackwardArguments<S> t, Act activation, Workspace workspace) {
  using T = MathsOf<S>;
  constexpr int kPanel = Walk::kPanelChannels;
  PALIMPSEST_SHARED(coefficients, GradientCoefficients<T, kPanel>);
  PALIMPSEST_SHARED(place, BlockPlace[1]);
  int panel = static_cast<int>(blockIdx.x % cut.panels), segment = static_cast<int>(blockIdx.x / cut.panels);
  if (threadIdx.x == 0) place[0] = {panel, segment};
  if (threadIdx.x < kPanel && int64_t{panel} * kPanel + threadIdx.x < cut.shape.c)
    coefficients.set_center(static_cast<int>(threadIdx.x), t, int64_t{panel} * kPanel + threadIdx.x);
  __syncthreads();
  const Walk walk(cut, panel);
  const ThreadChannels<T, kPanel, Walk::kVector / Walk::kChannels> k{coefficients, walk.first_channel()};
  GradientSums sums =
      block_sums<Walk>(thread_sums<kResidual>(walk, cut, segment, t, activation, k, NoGradientStash{}));
  panel = place[0].panel, segment = place[0].segment;
  const int64_t channel = int64_t{panel} * kPanel + threadIdx.x;
  const bool mine = threadIdx.x < kPanel && channel < cut.shape.c;
  if (cut.segments > 1) {
    auto* const records = static_cast<GradientSums*>(workspace.records);
    if (mine) records[segment * cut.shape.c + channel] = sums;
    if (!is_last_block(workspace.counters + panel, static_cast<unsigned>(cut.segments))) return;
    sums = sum_segments<kPanel, kThreads>(records, cut.segments, cut.shape.c, int64_t{panel} * kPanel);
  }
  if (mine) write_gradients(t, channel, parameter_gradients(t, channel, sums));
}

/// dx, and the residual's gradient and z where they are wanted, of V values, which take the places of what
/// they are computed from.
template <bool kResidual, class S, int V, class Act, class Channels>
__device__ __forceinline__ void propagate(const BackwardArguments<S>& t, const Act& activation,
                                          const Channels& k, int64_t at, GradientInputs<S, V>& in) {
  using T = MathsOf<S>;
  constexpr bool kSeparately = kReadsAgain<S>;  // z after dx, which then holds no registers
  for_each_gradient<kResidual, !kSeparately>(
      t, activation, k, at, in,
      [&](int i, int e, T dy, T away, T z) {
        // Frozen statistics know nothing of t, which may be infinite.
        in.dz.set_value(i, k.propagated(e, dy, t.frozen ? T(0) : away));
        if (!kSeparately && t.z) in.kept.set_value(i, z);
        if constexpr (kResidual)
          if (t.dresidual)
            in.residual.set_value(i, t.relu_residual && !(in.residual.value(i) > T(0)) ? T(0) : dy);
      },
      [] {});
  if (kResidual && t.dresidual) in.residual.store(t.dresidual + at);
  in.dz.store(t.dx + at);
  if (!t.z) return;
  if constexpr (kSeparately && !Act::kBranches) make_z_again<kResidual>(t, activation, k, at, in);
  in.kept.store(t.z + at);
}

/// A segment of the walk's panel. `from` has what was kept, and dz.
template <bool kResidual, class Walk, class S, class Act, class Channels, class From>
__device__ __forceinline__ void propagate_share(const Walk& walk, const Cut& cut, int segment,
                                                const BackwardArguments<S>& t, const Act& activation,
                                                const Channels& k, const From& from) {
  read_share<kResidual, Act>(
      walk, cut, segment, t, from, NoGradientStash{},
      [&]<int V>(GradientInputs<S, V>& in, int64_t at) { propagate<kResidual>(t, activation, k, at, in); });
}

/// Blocks go backwards through the tensors: what the sweep before read last is still in the L2 cache.
template <class S, class Walk, class Act, bool kResidual>
__global__ void __launch_bounds__(kThreads, 4)
    backward_apply_kernel(Cut cut, BackwardArguments<S> t, Act activation) {
  using T = MathsOf<S>;
  constexpr int kPanel = Walk::kPanelChannels;
  PALIMPSEST_SHARED(coefficients, GradientCoefficients<T, kPanel>);
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int panel = block % cut.panels, segment = block / cut.panels;
  const int64_t channel = int64_t{panel} * kPanel + threadIdx.x;
  if (threadIdx.x < kPanel && channel < cut.shape.c) {
    const int j = static_cast<int>(threadIdx.x);
    coefficients.set_center(j, t, channel);
    ParameterGradients<T> sums{};
    if (!t.frozen) sums = {t.sum_dy[channel], t.sum_dy_xhat[channel]};
    coefficients.set_propagation(j, t, channel, sums);
  }
  __syncthreads();
  const Walk walk(cut, panel);
  const ThreadChannels<T, kPanel, Walk::kVector / Walk::kChannels> k{coefficients, walk.first_channel()};
  propagate_share<kResidual>(walk, cut, segment, t, activation, k, GradientsFromMemory<S>{t.kept, t.dz});
}

}  // namespace palimpsest::kernels::cuda
