#pragma once

#include "palimpsest/kernels/cuda/abn/table.cuh"

namespace palimpsest::kernels::cuda {

/// Takes one batch of vectors into the moments of a thread; its first one gives the pivots.
template <class S, int V, int kChannels, int kUnroll>
__device__ __forceinline__ void add_batch(ThreadMoments<MathsOf<S>, kChannels>& m,
                                          const Stored<S, V> (&x)[kUnroll], const int64_t (&at)[kUnroll]) {
  using T = MathsOf<S>;
  constexpr int kEach = V / kChannels;  // values of a channel in a vector
  if (m.count == 0) {
    T sum[kChannels] = {};
    int vectors = 0;
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      if (at[u] < 0) continue;
      const Values<S, V> v = x[u].values();
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; ++i) sum[i / kEach] += v[i];
      ++vectors;
    }
    const T share = vectors ? T(1) / static_cast<T>(vectors * kEach) : T(0);
    PALIMPSEST_UNROLL
    for (int c = 0; c < kChannels; ++c) {
      const T mean = sum[c] * share;
      m.pivot[c] = mean - mean == 0 ? mean : T(0);  // an infinity would make all of its channel NaN
    }
  }
  PALIMPSEST_UNROLL
  for (int u = 0; u < kUnroll; ++u) {
    if (at[u] < 0) continue;
    const Values<S, V> v = x[u].values();
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) m.add(i / kEach, v[i]);
    m.count += kEach;
  }
}

/// The moments of what this thread finds of a share. `stash` is shown every batch and every single value.
template <class Walk, class S, class Stash>
__device__ __forceinline__ ThreadMoments<MathsOf<S>, Walk::kChannels> thread_moments(const Walk& walk,
                                                                                     const Cut& cut,
                                                                                     int segment, const S* x,
                                                                                     const Stash& stash) {
  // Columns hold three sums of each of their channels already, of 64 registers.
  constexpr int kUnroll = Walk::kChannels == 1 ? 4 : 2, V = Walk::kVector;
  ThreadMoments<MathsOf<S>, Walk::kChannels> m;
  walk.template vectors<kUnroll>(cut.first_piece(segment), cut.first_piece(segment + 1),
                                 [&](const int64_t(&at)[kUnroll], int serial) {
                                   Stored<S, V> in[kUnroll];
                                   PALIMPSEST_UNROLL
                                   for (int u = 0; u < kUnroll; ++u)
                                     if (at[u] >= 0) in[u].load(x + at[u]);
                                   stash.vectors(in, at, serial);
                                   add_batch<S, V, Walk::kChannels>(m, in, at);
                                 });
  walk.edges(cut.first_edge(segment), cut.first_edge(segment + 1), [&](int64_t at, int serial) {
    Stored<S, 1> in;
    in.load(x + at);
    stash.edge(in, serial);
    const Values<S, 1> v = in.values();
    if (m.count == 0) m.pivot[0] = v[0] - v[0] == 0 ? v[0] : MathsOf<S>(0);
    m.add(0, v[0]);
    ++m.count;
  });
  return m;
}

/// Keeps nothing.
struct NoStash {
  template <class S, int V, int kUnroll>
  __device__ __forceinline__ void vectors(const Stored<S, V> (&)[kUnroll], const int64_t (&)[kUnroll],
                                          int) const {}
  template <class S>
  __device__ __forceinline__ void edge(const Stored<S, 1>&, int) const {}
};

__device__ __forceinline__ double inv_std_of(const Moments& m, double eps) {
  return 1 / sqrt(m.squares / m.count + eps);
}

/// The statistics of channel c, once they are known, where the layer wants them.
template <class T>
__device__ __forceinline__ void write_statistics(const StatisticsOutputs<T>& out, int64_t c,
                                                 const Moments& m) {
  if (out.mean) out.mean[c] = m.mean;
  if (out.var) out.var[c] = m.squares / m.count;
  if (out.inv_std) out.inv_std[c] = inv_std_of(m, out.eps);
  const auto moved = [&](T running, double batch) {
    return static_cast<T>((1 - out.momentum) * static_cast<double>(running) + out.momentum * batch);
  };
  if (out.running_mean) out.running_mean[c] = moved(out.running_mean[c], m.mean);
  if (out.running_var) out.running_var[c] = moved(out.running_var[c], m.squares / (m.count - 1));
}

/// Block b: segment b / panels of panel b % panels, so that blocks that run at the same time read what lies
/// side by side. The last block of a panel puts its segments together.
template <class S, class Walk>
__global__ void __launch_bounds__(kThreads, 4)
    statistics_kernel(Cut cut, const S* x, StatisticsOutputs<MathsOf<S>> out, Workspace workspace) {
  constexpr int kPanel = Walk::kPanelChannels;
  const int panel = static_cast<int>(blockIdx.x % cut.panels),
            segment = static_cast<int>(blockIdx.x / cut.panels);
  const Walk walk(cut, panel);
  Moments m = block_moments<Walk>(thread_moments(walk, cut, segment, x, NoStash{}), cut.pieces_of(segment));
  const int64_t channel = int64_t{panel} * kPanel + threadIdx.x;
  const bool mine = threadIdx.x < kPanel && channel < cut.shape.c;
  if (cut.segments > 1) {
    auto* const records = static_cast<Moments*>(workspace.records);
    if (mine) records[segment * cut.shape.c + channel] = m;
    if (!is_last_block(workspace.counters + panel, static_cast<unsigned>(cut.segments))) return;
    m = merge_segments<kPanel, kThreads>(records, cut.segments, cut.shape.c, int64_t{panel} * kPanel);
  }
  if (mine) write_statistics(out, channel, m);
}

}  // namespace palimpsest::kernels::cuda
