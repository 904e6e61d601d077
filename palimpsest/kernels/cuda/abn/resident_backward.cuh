#pragma once

#include "palimpsest/kernels/cuda/abn/backward.cuh"

namespace palimpsest::kernels::cuda {

/// A block's share of what was kept and of dz, in shared memory, as they are stored: each thread finds there
/// what it put there.
template <class S, int V>
class GradientStash {
 public:
  using Vector = decltype(Stored<S, V>::bits);

  /// `bytes`: dynamic shared memory: the vectors of both, then the single values of both.
  __device__ __forceinline__ GradientStash(unsigned char* bytes, int vectors, int edges)
      : vectors_(reinterpret_cast<Vector*>(bytes)),
        edges_(reinterpret_cast<S*>(vectors_ + 2 * vectors)),
        dz_vector_(vectors),
        dz_edge_(edges) {}

  __device__ __forceinline__ void put(const GradientInputs<S, V>& in, int serial) const {
    vectors_[serial] = in.kept.bits;
    vectors_[dz_vector_ + serial] = in.dz.bits;
  }
  __device__ __forceinline__ void put_edge(const GradientInputs<S, 1>& in, int serial) const {
    edges_[serial] = in.kept.bits;
    edges_[dz_edge_ + serial] = in.dz.bits;
  }
  __device__ __forceinline__ void read(GradientInputs<S, V>& to, int64_t, int serial) const {
    to.kept.bits = vectors_[serial];
    to.dz.bits = vectors_[dz_vector_ + serial];
  }
  __device__ __forceinline__ void read_edge(GradientInputs<S, 1>& to, int64_t, int serial) const {
    to.kept.bits = edges_[serial];
    to.dz.bits = edges_[dz_edge_ + serial];
  }

 private:
  Vector* vectors_;
  S* edges_;
  int dz_vector_, dz_edge_;
};

/// The sums of a panel from those of the cluster's blocks, in every block: thread j < kPanel has those of
/// channel j before and after. A barrier of the cluster.
template <int kPanel>
__device__ __forceinline__ GradientSums cluster_sums(const GradientSums& own) {
  PALIMPSEST_SHARED(share, GradientSums[kPanel]);
  if (threadIdx.x < kPanel) share[threadIdx.x] = own;
  cluster_sync();
  if (threadIdx.x >= kPanel) return own;
  GradientSums all = {0, 0};
  for (unsigned rank = 0; rank < cluster_size(); ++rank) all += in_cluster_block(share, rank)[threadIdx.x];
  return all;
}

/// Reduce and apply over a panel that stays in the shared memory of one cluster: what was kept and dz are
/// read once.
template <class S, class Walk, class Act, bool kResidual>
__global__ void __launch_bounds__(kResidentThreads, 2)
    resident_backward_kernel(Cut cut, BackwardArguments<S> t, Act activation) {
  using T = MathsOf<S>;
  constexpr int kPanel = Walk::kPanelChannels;
  PALIMPSEST_DYNAMIC_SHARED(bytes);
  PALIMPSEST_SHARED(coefficients, GradientCoefficients<T, kPanel>);
  PALIMPSEST_SHARED(place, BlockPlace[1]);
  int panel = static_cast<int>(blockIdx.x / cut.segments),
      segment = static_cast<int>(blockIdx.x % cut.segments);
  if (threadIdx.x == 0) place[0] = {panel, segment};
  const int j = static_cast<int>(threadIdx.x);
  if (j < kPanel && int64_t{panel} * kPanel + j < cut.shape.c)
    coefficients.set_center(j, t, int64_t{panel} * kPanel + j);
  __syncthreads();
  const Walk walk(cut, panel);
  const ThreadChannels<T, kPanel, Walk::kVector / Walk::kChannels> k{coefficients, walk.first_channel()};
  const GradientStash<S, Walk::kVector> stash(bytes, cut.pieces_of(segment) * Walk::kPanelVectors,
                                              cut.first_edge(segment + 1) - cut.first_edge(segment));
  GradientSums sums = block_sums<Walk>(thread_sums<kResidual>(walk, cut, segment, t, activation, k, stash));
  panel = place[0].panel, segment = place[0].segment;
  if (cut.segments > 1) sums = cluster_sums<kPanel>(sums);
  const int64_t channel = int64_t{panel} * kPanel + j;
  if (j < kPanel && channel < cut.shape.c) {
    const ParameterGradients<T> gradients = parameter_gradients(t, channel, sums);
    coefficients.set_propagation(j, t, channel, gradients);
    if (segment == 0) write_gradients(t, channel, gradients);
  }
  if (cut.segments > 1)
    cluster_sync();  // no block ends while another one reads its sums
  else
    __syncthreads();
  propagate_share<kResidual>(walk, cut, segment, t, activation, k, stash);
}

}  // namespace palimpsest::kernels::cuda
