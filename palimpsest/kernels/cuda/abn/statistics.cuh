#pragma once

#include "palimpsest/kernels/cuda/abn/moments.cuh"
#include "palimpsest/kernels/cuda/abn/table.cuh"
#include "palimpsest/kernels/cuda/device/ring.cuh"
#include "palimpsest/kernels/formulas/abn_formulas.h"

/// The mean and variance of each channel, in one pass over x.
namespace palimpsest::kernels::cuda::abn_detail {

/// Makes the means of a thread's first vectors, those with at[u] >= 0, the pivots of its moments.
template <class S, int V, int kChannels, int kUnroll>
__device__ __forceinline__ void set_pivots(ThreadMoments<accumulate_t<S>, kChannels>& moments,
                                           const Stored<S, V> (&x)[kUnroll], const int64_t (&at)[kUnroll]) {
  using T = accumulate_t<S>;
  constexpr int kPerChannel = V / kChannels;  // values of one channel in a vector
  T sum[kChannels] = {};
  int vectors = 0;
  PALIMPSEST_UNROLL
  for (int u = 0; u < kUnroll; ++u) {
    if (at[u] < 0) continue;
    const Values<S, V> v = x[u].values();
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) sum[i / kPerChannel] += v[i];
    ++vectors;
  }
  const T share = vectors ? T(1) / static_cast<T>(vectors * kPerChannel) : T(0);
  PALIMPSEST_UNROLL
  for (int c = 0; c < kChannels; ++c) {
    const T mean = sum[c] * share;
    // An infinite pivot would make the whole channel NaN. Rounded to storage, 16-bit values differ from it exactly.
    moments.pivot[c] = mean - mean == 0 ? widen(narrow<S>(mean)) : T(0);
  }
}

/// Adds a vector to the moments of a thread, after the pivots are set.
template <class S, int V, int kChannels>
__device__ __forceinline__ void add_vector(ThreadMoments<accumulate_t<S>, kChannels>& moments,
                                           const Stored<S, V>& x) {
  constexpr int kPerChannel = V / kChannels;
  const Values<S, V> v = x.values();
  PALIMPSEST_UNROLL
  for (int i = 0; i < V; ++i) moments.add(i / kPerChannel, v[i]);
  moments.count += kPerChannel;
}

/// Adds one batch of vectors to the moments of a thread. The first batch gives the pivots.
template <class S, int V, int kChannels, int kUnroll>
__device__ __forceinline__ void add_batch(ThreadMoments<accumulate_t<S>, kChannels>& moments,
                                          const Stored<S, V> (&x)[kUnroll], const int64_t (&at)[kUnroll]) {
  if (moments.count == 0) set_pivots(moments, x, at);
  PALIMPSEST_UNROLL
  for (int u = 0; u < kUnroll; ++u)
    if (at[u] >= 0) add_vector(moments, x[u]);
}

/// Returns the moments of the values of a segment that this thread reads. `from` provides them.
template <class S, class Walk, class From>
__device__ __forceinline__ ThreadMoments<accumulate_t<S>, Walk::kChannels> thread_moments(const Walk& walk,
                                                                                          const Cut& cut,
                                                                                          int segment,
                                                                                          const From& from) {
  constexpr int V = Walk::kVector;
  // Columns hold three sums for each of their channels, out of 64 registers. Shorter vectors have fewer
  // channels.
  constexpr int kUnroll = Walk::kChannels == 1 || V < kLanes<S> ? 4 : 2;
  ThreadMoments<accumulate_t<S>, Walk::kChannels> moments;
  const auto do_vectors = [&](const int64_t(&at)[kUnroll], int serial) {
    Stored<S, V> in[kUnroll];
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u)
      if (at[u] >= 0) from.read(in[u], at[u], serial + u * walk.step());
    add_batch(moments, in, at);
  };
  const auto do_edge = [&](int64_t at, int serial) {
    Stored<S, 1> in;
    from.read_edge(in, at, serial);
    const Values<S, 1> v = in.values();
    if (moments.count == 0) moments.pivot[0] = v[0] - v[0] == 0 ? v[0] : accumulate_t<S>(0);
    moments.add(0, v[0]);
    ++moments.count;
  };
  walk.template vectors<kUnroll>(cut, segment, do_vectors);
  walk.edges(cut.first_edge(segment), cut.first_edge(segment + 1), do_edge);
  return moments;
}

/// The same from memory through a ring.
template <class S, class Walk>
__device__ __forceinline__ ThreadMoments<accumulate_t<S>, Walk::kChannels> thread_moments_ahead(
    const Walk& walk, const Cut& cut, int segment, const S* x) {
  constexpr int V = Walk::kVector, kUnroll = 2, kSlots = 4;
  PALIMPSEST_SHARED(ring, Ring<S, V, 1, kUnroll, kSlots, Walk::kBlockThreads>);
  ThreadMoments<accumulate_t<S>, Walk::kChannels> moments;
  walk.template vectors_ahead<kUnroll, kSlots>(
      cut, segment,
      [&](const int64_t(&at)[kUnroll], int slot) {
        PALIMPSEST_UNROLL
        for (int u = 0; u < kUnroll; ++u)
          if (at[u] >= 0) ring.start(slot, u, 0, x + at[u]);
      },
      [&](int slot, int vectors) {
        Stored<S, V> in[kUnroll];
        int64_t at[kUnroll];
        PALIMPSEST_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
          at[u] = u < vectors ? 0 : -1;
          if (at[u] >= 0) ring.read(in[u], slot, u, 0);
        }
        add_batch(moments, in, at);
      },
      [&](int slot) {
        Stored<S, V> in[kUnroll];
        PALIMPSEST_UNROLL
        for (int u = 0; u < kUnroll; ++u) ring.read(in[u], slot, u, 0);
        PALIMPSEST_UNROLL
        for (int u = 0; u < kUnroll; ++u) add_vector(moments, in[u]);
      });
  return moments;
}

__device__ __forceinline__ double inv_std_of(const Moments& moments, double eps) {
  return 1 / sqrt(moments.squares / moments.count + eps);
}

/// The running statistics of a channel; undefined where there are none.
template <class T>
struct Running {
  T mean, var;

  __device__ __forceinline__ static Running of(const StatisticsOutputs<T>& outputs, int64_t c) {
    return {outputs.running_mean ? outputs.running_mean[c] : T(0),
            outputs.running_var ? outputs.running_var[c] : T(0)};
  }
};

/// Writes the statistics of channel c to those outputs that are wanted. `running`: what they were before.
template <class T>
__device__ __forceinline__ void write_statistics(const StatisticsOutputs<T>& outputs, int64_t c,
                                                 const Moments& moments, Running<T> running) {
  if (outputs.mean) outputs.mean[c] = moments.mean;
  if (outputs.var) outputs.var[c] = moments.squares / moments.count;
  if (outputs.inv_std) outputs.inv_std[c] = inv_std_of(moments, outputs.eps);
  if (outputs.running_mean) {
    move_running(running.mean, moments.mean, outputs.momentum);
    outputs.running_mean[c] = running.mean;
  }
  if (outputs.running_var) {
    move_running(running.var, moments.squares / (moments.count - 1), outputs.momentum);
    outputs.running_var[c] = running.var;
  }
}

/// Writes the report of a choice, by a block of kBlock threads that does nothing else. T: the parameters'
/// type.
template <class T, int kBlock>
__device__ __forceinline__ void report_slots(const SlotArguments& slots, int64_t channels) {
  report_outlooks<kBlock>(slots.tensors, channels, [&](int64_t c) {
    return outlook_of_channel<T>(slots.tensors, slots.criterion, c, 0);
  });
}

/// abn_statistics. Grid: block b of kThreads threads does segment b / panels of panel b % panels, so that
/// blocks that run at the same time read neighbouring memory; the last block of a panel adds up its segments.
/// With a choice, block 0 reports it and the others count from block 1: it runs beside them and ends first.
/// Shared: 6 to 11 KB for the sums, 32 KB for a ring. Registers: at most 64, so that four blocks run per multiprocessor.
template <class S, class Walk>
__global__ void __launch_bounds__(kThreads, 4)
    statistics_kernel(Cut cut, const S* x, StatisticsOutputs<accumulate_t<S>> outputs, Workspace workspace,
                      SlotArguments slots) {
  start_next_launch();
  unsigned block = blockIdx.x;
  if (slots.tensors.report && block-- == 0)
    return report_slots<accumulate_t<S>, kThreads>(slots, cut.shape.c);
  const int wide = Walk::panel_channels(cut);
  const int panel = static_cast<int>(block % cut.panels), segment = static_cast<int>(block / cut.panels);
  const Walk walk(cut, panel);
  const auto own = [&] {
    if constexpr (kReadsAhead<Walk, S>)
      return thread_moments_ahead<S>(walk, cut, segment, x);
    else
      return thread_moments<S>(walk, cut, segment, FromMemory<S>{x});
  }();
  const int pieces =
      kReadsAhead<Walk, S> ? cut.pieces_in_turn(segment, kThreads / cut.wide) : cut.pieces_of(segment);
  Moments moments = block_moments<Walk>(own, pieces, cut.wide);
  const int j = static_cast<int>(threadIdx.x);
  const int64_t channel = int64_t{panel} * wide + j;
  const bool has_channel = j < wide && channel < cut.shape.c;
  if (cut.segments > 1) {
    auto* const records = static_cast<Moments*>(workspace.records);
    if (has_channel) records[segment * cut.shape.c + channel] = moments;
    if (!is_last_block(workspace.counters + panel, static_cast<unsigned>(cut.segments))) return;
    moments = merge_segments(records, cut.segments, cut.shape.c, int64_t{panel} * wide, wide);
  }
  if (has_channel)
    write_statistics(outputs, channel, moments, Running<accumulate_t<S>>::of(outputs, channel));
}

}  // namespace palimpsest::kernels::cuda::abn_detail
