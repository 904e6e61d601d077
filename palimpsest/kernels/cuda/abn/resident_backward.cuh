#pragma once

#include "palimpsest/kernels/cuda/abn/backward.cuh"
#include "palimpsest/kernels/cuda/abn/stash.cuh"

/// Reduce and apply in one launch: a panel stays in the shared memory of one cluster, and the saved values
/// and dz are read once.
namespace palimpsest::kernels::cuda::abn_detail {

/// A block's share of the saved values and of dz in shared memory, as they are stored. A thread reads only
/// values that it put there.
template <class S, int V>
class GradientStash {
 public:
  using Vector = decltype(Stored<S, V>::bits);

  /// `bytes` is the dynamic shared memory: first the vectors of both tensors, then the single values of both.
  __device__ __forceinline__ GradientStash(unsigned char* bytes, int vectors, int edges)
      : vectors_(reinterpret_cast<Vector*>(bytes)),
        edges_(reinterpret_cast<S*>(vectors_ + 2 * vectors)),
        dz_vector_(vectors),
        dz_edge_(edges) {}

  /// May be read after wait_for_copies().
  __device__ __forceinline__ void put(const S* saved_values, const S* dz, int serial) const {
    put_vector<V>(vectors_ + serial, saved_values);
    put_vector<V>(vectors_ + dz_vector_ + serial, dz);
  }
  __device__ __forceinline__ void put_edge(const S* saved_value, const S* dz, int serial) const {
    edges_[serial] = *saved_value;
    edges_[dz_edge_ + serial] = *dz;
  }
  __device__ __forceinline__ void read(GradientInputs<S, V>& to, int64_t, int serial) const {
    to.saved_values.bits = vectors_[serial];
    to.dz.bits = vectors_[dz_vector_ + serial];
  }
  __device__ __forceinline__ void read_edge(GradientInputs<S, 1>& to, int64_t, int serial) const {
    to.saved_values.bits = edges_[serial];
    to.dz.bits = edges_[dz_edge_ + serial];
  }

 private:
  Vector* vectors_;
  S* edges_;
  int dz_vector_, dz_edge_;
};

/// Adds up the sums of a panel over the blocks of its cluster, in every block. Thread j < kPanel passes and
/// gets those of channel j. All threads of the cluster call it; it contains a barrier of the cluster.
template <int kPanel>
__device__ __forceinline__ GradientSums cluster_sums(const GradientSums& own) {
  PALIMPSEST_SHARED(share, GradientSums[kPanel]);
  if (threadIdx.x < kPanel) share[threadIdx.x] = own;
  cluster_sync();
  if (threadIdx.x >= kPanel) return own;
  GradientSums all = {0, 0};
  for_each_rank([&](unsigned rank) { return in_cluster_block(share, rank)[threadIdx.x]; },
                [&](const GradientSums& of_block) { all += of_block; });
  return all;
}

/// abn_backward. Grid: one cluster of cut.segments blocks of kResidentThreads threads per panel. Shared: the
/// block's share of two tensors, up to half of the multiprocessor's or, alone there, all of it, and 0.4 to 14 KB for sums and
/// coefficients. Registers: at most 64, so that two blocks run per multiprocessor.
template <class S, class Walk, class Act, bool kResidual>
__global__ void __launch_bounds__(kResidentThreads, 2)
    resident_backward_kernel(Cut cut, BackwardArguments<S> arguments, Act activation) {
  using T = accumulate_t<S>;
  constexpr int kPanel = Walk::kPanelChannels, kPlaces = Walk::kPlaces;
  PALIMPSEST_DYNAMIC_SHARED(bytes);
  const auto coefficients = WalkCoefficients<Walk, T, GradientCoefficients>::in(bytes);
  PALIMPSEST_SHARED(place, BlockPlace[1]);
  int panel = static_cast<int>(blockIdx.x / cut.segments),
      segment = static_cast<int>(blockIdx.x % cut.segments);
  if (threadIdx.x == 0) place[0] = {panel, segment};
  const GradientStash<S, Walk::kVector> stash(bytes + cut.scratch, cut.most_vectors(), cut.most_edges());
  for_each_place(
      Walk(cut, panel), cut, segment,
      [&](int64_t at, int serial) { stash.put(arguments.saved_values + at, arguments.dz + at, serial); },
      [&](int64_t at, int serial) {
        stash.put_edge(arguments.saved_values + at, arguments.dz + at, serial);
      });
  const int j = static_cast<int>(threadIdx.x), wide = Walk::panel_channels(cut);
  if (j < wide && int64_t{panel} * wide + j < cut.shape.c)
    coefficients.channels.set_center(j, arguments, int64_t{panel} * wide + j);
  coefficients.spread(
      cut, [](int to, auto& places, int from, auto& channels) { places.copy_center(to, channels, from); });
  wait_for_copies();
  using Channels = ThreadChannels<T, Walk::kChannels, kPlaces, Walk::kVector / Walk::kChannels>;
  GradientSums sums;
  {
    const Walk walk(cut, panel);
    const auto own = thread_sums<kResidual>(walk, cut, segment, arguments, activation,
                                            Channels{coefficients.places, walk.first_channel()}, stash);
    if constexpr (Walk::kStrips)  // the coefficients of dx are written later
      sums = strip_sums<Walk>(own, cut, reinterpret_cast<T*>(&coefficients.places.per_dy));
    else
      sums = block_sums<Walk>(own, cut.wide);
  }
  panel = place[0].panel, segment = place[0].segment;
  if (cut.segments > 1) sums = cluster_sums<kPanel>(sums);
  const int64_t channel = int64_t{panel} * wide + j;
  if (j < wide && channel < cut.shape.c) {
    const ParameterGradients<T> gradients = parameter_gradients(arguments, channel, sums);
    set_dx<S, Act>(coefficients.channels, j, arguments, channel, gradients);
    if (segment == 0) write_gradients(arguments, channel, gradients);
  }
  coefficients.spread(
      cut, [](int to, auto& places, int from, auto& channels) { places.copy_dx(to, channels, from); });
  if (cut.segments > 1) cluster_arrive();  // this block has read the sums of the others
  // Made again from the block's place, so that the first pass keeps no registers for the second.
  const Walk walk(cut, panel);
  backward_apply_share<kResidual>(walk, cut, segment, arguments, activation,
                                  Channels{coefficients.places, walk.first_channel()}, stash);
  if (cut.segments > 1) cluster_wait();  // no block ends while another one reads its sums
}

}  // namespace palimpsest::kernels::cuda::abn_detail
