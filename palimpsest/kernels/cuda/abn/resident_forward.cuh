#pragma once

#include "palimpsest/kernels/cuda/abn/apply.cuh"
#include "palimpsest/kernels/cuda/abn/stash.cuh"
#include "palimpsest/kernels/cuda/abn/statistics.cuh"

/// Statistics and apply in one launch: a panel stays in the shared memory of one cluster, and x is read once.
namespace palimpsest::kernels::cuda::abn_detail {

/// A block's share of x in shared memory, as it is stored. A thread reads only values that it put there.
template <class S, int V>
class Stash {
 public:
  using Vector = decltype(Stored<S, V>::bits);

  /// `bytes` is the dynamic shared memory: first the vectors, then the single values.
  __device__ __forceinline__ Stash(unsigned char* bytes, int vectors)
      : vectors_(reinterpret_cast<Vector*>(bytes)), edges_(reinterpret_cast<S*>(vectors_ + vectors)) {}

  /// May be read after wait_for_copies().
  __device__ __forceinline__ void put(const S* from, int serial) const {
    put_vector<V>(vectors_ + serial, from);
  }
  __device__ __forceinline__ void put_edge(const S* from, int serial) const { edges_[serial] = *from; }

  __device__ __forceinline__ void read(Stored<S, V>& to, int64_t, int serial) const {
    to.bits = vectors_[serial];
  }
  __device__ __forceinline__ void read_edge(Stored<S, 1>& to, int64_t, int serial) const {
    to.bits = edges_[serial];
  }

 private:
  Vector* vectors_;
  S* edges_;
};

/// Adds up the moments of a panel over the blocks of its cluster, in every block. Thread j < kPanel passes
/// and gets those of channel j. All threads of the cluster call it; it contains a barrier of the cluster.
template <int kPanel>
__device__ __forceinline__ Moments cluster_moments(const Moments& own) {
  PALIMPSEST_SHARED(share, Moments[kPanel]);
  if (threadIdx.x < kPanel) share[threadIdx.x] = own;
  cluster_sync();
  if (threadIdx.x >= kPanel) return own;
  PivotSums all = {0, 0, 0};
  double pivot = 0;  // of the first block that has values
  for_each_rank([&](unsigned rank) { return in_cluster_block(share, rank)[threadIdx.x]; },
                [&](const Moments& of_block) {
                  if (all.count == 0) pivot = of_block.mean;
                  all += PivotSums::of(of_block, pivot);
                });
  return all.moments(pivot);
}

/// What a thread reads of a channel while the panel is on its way.
template <class T>
struct EarlyChannel {
  T weight, bias;
  Running<T> running;
};

/// Each of the panel's first threads reads its channel, the running statistics in the block of segment 0.
template <class Walk, class S, class Early>
__device__ __forceinline__ void read_early(Early& early, const ApplyArguments<S>& arguments,
                                           const StatisticsOutputs<accumulate_t<S>>& outputs, const Cut& cut,
                                           int panel, int segment) {
  using T = accumulate_t<S>;
  const int j = static_cast<int>(threadIdx.x), wide = Walk::panel_channels(cut);
  const int64_t c = int64_t{panel} * wide + j;
  if (j >= wide || c >= cut.shape.c) return;
  const AbnChannel<T> channel = channel_of(arguments, c);
  early[j].weight = static_cast<T>(channel.weight());
  early[j].bias = static_cast<T>(channel.bias());
  if (segment == 0) early[j].running = Running<T>::of(outputs, c);
}

/// abn_forward. Grid: one cluster of cut.segments blocks of kResidentThreads threads per panel, and with a
/// choice one cluster before them, of which one block reports it and the others end at once. Shared: the
/// block's share of x, up to half of the multiprocessor's or, alone there, all of it, and 0.5 to 12 KB for sums and coefficients.
/// Registers: at most 64, so that two blocks run per multiprocessor.
template <class S, class Walk, class Act, bool kResidual>
__global__ void __launch_bounds__(kResidentThreads, 2)
    resident_forward_kernel(Cut cut, ApplyArguments<S> arguments, StatisticsOutputs<accumulate_t<S>> outputs,
                            Act activation, SlotArguments slots) {
  using T = accumulate_t<S>;
  constexpr int kPanel = Walk::kPanelChannels;
  constexpr bool kEarly = sizeof(T) == 4;  // f64 leaves no registers for it
  PALIMPSEST_DYNAMIC_SHARED(bytes);
  const auto coefficients = WalkCoefficients<Walk, T, PanelForward>::in(bytes);
  PALIMPSEST_SHARED(place, BlockPlace[1]);
  PALIMPSEST_SHARED(early, EarlyChannel<T>[kPanel]);
  int segment = static_cast<int>(blockIdx.x % cut.segments),
      panel = static_cast<int>(blockIdx.x / cut.segments);
  if (slots.tensors.report && panel-- == 0) {
    if (segment == 0) report_slots<T, kResidentThreads>(slots, cut.shape.c);
    return;
  }
  if (threadIdx.x == 0) place[0] = {panel, segment};
  const Stash<S, Walk::kVector> stash(bytes + cut.scratch, cut.most_vectors());
  Moments moments;
  {
    const Walk walk(cut, panel);
    for_each_place(
        walk, cut, segment, [&](int64_t at, int serial) { stash.put(arguments.x + at, serial); },
        [&](int64_t at, int serial) { stash.put_edge(arguments.x + at, serial); });
    if constexpr (kEarly) read_early<Walk>(early, arguments, outputs, cut, panel, segment);
    wait_for_copies();
    const auto own = thread_moments<S>(walk, cut, segment, stash);
    if constexpr (Walk::kStrips)
      moments = strip_moments<Walk>(own, cut, cut.pieces_of(segment), reinterpret_cast<T*>(bytes));
    else
      moments = block_moments<Walk>(own, cut.pieces_of(segment), cut.wide);
  }
  panel = place[0].panel, segment = place[0].segment;
  if (cut.segments > 1) moments = cluster_moments<kPanel>(moments);
  if constexpr (!kEarly) read_early<Walk>(early, arguments, outputs, cut, panel, segment);
  const int j = static_cast<int>(threadIdx.x), wide = Walk::panel_channels(cut);
  const int64_t channel = int64_t{panel} * wide + j;
  if (j < wide && channel < cut.shape.c) {
    if (segment == 0) write_statistics(outputs, channel, moments, early[j].running);
    coefficients.channels.set(j, forward_coefficients<T>(arguments.saved, early[j].weight, early[j].bias,
                                                         moments.mean, inv_std_of(moments, outputs.eps)));
  }
  coefficients.spread(
      cut, [](int to, auto& places, int from, auto& channels) { places.copy(to, channels, from); });
  if (cut.segments > 1) cluster_arrive();  // this block has read the moments of the others
  // Made again from the block's place, so that the first pass keeps no registers for the second.
  apply_share<kResidual>(Walk(cut, panel), cut, segment, arguments, activation, coefficients.places, stash);
  if (cut.segments > 1) cluster_wait();  // no block ends while another one reads its moments
}

}  // namespace palimpsest::kernels::cuda::abn_detail
