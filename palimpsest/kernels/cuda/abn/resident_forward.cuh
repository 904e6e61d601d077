#pragma once

#include "palimpsest/kernels/cuda/abn/apply.cuh"
#include "palimpsest/kernels/cuda/abn/statistics.cuh"

namespace palimpsest::kernels::cuda {

/// A block's share of a tensor in shared memory, as it is stored: each thread finds there what it put there.
template <class S, int V>
class Stash {
 public:
  using Vector = decltype(Stored<S, V>::bits);

  /// `bytes`: dynamic shared memory, the vectors first.
  __device__ __forceinline__ Stash(unsigned char* bytes, int vectors)
      : vectors_(reinterpret_cast<Vector*>(bytes)), edges_(reinterpret_cast<S*>(vectors_ + vectors)) {}

  template <int kUnroll>
  __device__ __forceinline__ void vectors(const Stored<S, V> (&in)[kUnroll], const int64_t (&at)[kUnroll],
                                          int serial) const {
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u)
      if (at[u] >= 0) vectors_[serial + u * kResidentThreads] = in[u].bits;
  }
  __device__ __forceinline__ void edge(const Stored<S, 1>& in, int serial) const { edges_[serial] = in.bits; }

  __device__ __forceinline__ void vector(Stored<S, V>& to, int64_t, int serial) const {
    to.bits = vectors_[serial];
  }
  __device__ __forceinline__ void edge(Stored<S, 1>& to, int64_t, int serial) const {
    to.bits = edges_[serial];
  }

 private:
  Vector* vectors_;
  S* edges_;
};

/// The moments of a panel from those of the cluster's blocks, in every block: thread j < kPanel has those of
/// channel j before and after. A barrier of the cluster.
template <int kPanel>
__device__ __forceinline__ Moments cluster_moments(const Moments& own) {
  PALIMPSEST_SHARED(share, Moments[kPanel]);
  if (threadIdx.x < kPanel) share[threadIdx.x] = own;
  cluster_sync();
  if (threadIdx.x >= kPanel) return own;
  PivotSums all = {0, 0, 0};
  const double pivot = in_cluster_block(share, 0)[threadIdx.x].mean;
  for (unsigned rank = 0; rank < cluster_size(); ++rank)
    all += PivotSums::of(in_cluster_block(share, rank)[threadIdx.x], pivot);
  return all.moments(pivot);
}

/// Statistics and apply over a panel that stays in the shared memory of one cluster: x is read once.
template <class S, class Walk, class Act, bool kResidual>
__global__ void __launch_bounds__(kResidentThreads, 2)
    resident_forward_kernel(Cut cut, ApplyArguments<S> t, StatisticsOutputs<MathsOf<S>> out, Act activation) {
  constexpr int kPanel = Walk::kPanelChannels;
  PALIMPSEST_DYNAMIC_SHARED(bytes);
  PALIMPSEST_SHARED(coefficients, Coefficients<MathsOf<S>>[kPanel]);
  const int segment = static_cast<int>(blockIdx.x % cut.segments),
            panel = static_cast<int>(blockIdx.x / cut.segments);
  const Walk walk(cut, panel);
  const Stash<S, Walk::kVector> stash(bytes, cut.pieces_of(segment) * Walk::kPanelVectors);
  Moments m = block_moments<Walk>(thread_moments(walk, cut, segment, t.x, stash), cut.pieces_of(segment));
  if (cut.segments > 1) m = cluster_moments<kPanel>(m);
  const int64_t channel = int64_t{panel} * kPanel + threadIdx.x;
  if (threadIdx.x < kPanel && channel < cut.shape.c) {
    coefficients[threadIdx.x] = coefficients_of(t, channel, m.mean, inv_std_of(m, out.eps));
    if (segment == 0) write_statistics(out, channel, m);
  }
  if (cut.segments > 1)
    cluster_sync();  // no block ends while another one reads its moments
  else
    __syncthreads();
  apply_share<kResidual>(walk, cut, segment, t, activation, coefficients + walk.first_channel(), stash);
}

}  // namespace palimpsest::kernels::cuda
