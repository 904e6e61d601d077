#pragma once

#include "palimpsest/kernels/cuda/device/walk.cuh"

#include <cstdint>

/// How a block brings its share of a panel into shared memory: by copies without registers, all of which are
/// under way at once. A thread puts there what it reads itself, so that only it has to wait.
namespace palimpsest::kernels::cuda::abn_detail {

/// Calls add(read(rank)) for the blocks of the cluster, in order. Some reads are under way at once.
template <class Read, class Add>
__device__ __forceinline__ void for_each_rank(const Read& read, const Add& add) {
  using Value = decltype(read(0u));
  constexpr unsigned kAtOnce = sizeof(Value) > 16 ? 2 : 4;
  const unsigned size = cluster_size();
  for (unsigned first = 0; first < size; first += kAtOnce) {
    Value values[kAtOnce];
    PALIMPSEST_UNROLL
    for (unsigned i = 0; i < kAtOnce; ++i)
      if (first + i < size) values[i] = read(first + i);
    PALIMPSEST_UNROLL
    for (unsigned i = 0; i < kAtOnce; ++i)
      if (first + i < size) add(values[i]);
  }
}

/// Copies one vector of a walk, `V` values of S, to shared memory. It is there after wait_for_copies().
template <int V, class S, class Vector>
__device__ __forceinline__ void put_vector(Vector* to, const S* from) {
  if constexpr (sizeof(Vector) < 4)
    *to = *from;
  else
    start_copy(to, reinterpret_cast<const Vector*>(from));
}

/// Calls vector(at, serial) and edge(at, serial) for all that this thread meets in a segment of the walk's
/// panel.
template <class Walk, class Vector, class Edge>
__device__ __forceinline__ void for_each_place(const Walk& walk, const Cut& cut, int segment,
                                               const Vector& vector, const Edge& edge) {
  constexpr int kUnroll = 4;
  walk.template vectors<kUnroll>(cut, segment, [&](const int64_t(&at)[kUnroll], int serial) {
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u)
      if (at[u] >= 0) vector(at[u], serial + u * walk.step());
  });
  walk.edges(cut.first_edge(segment), cut.first_edge(segment + 1), edge);
}

}  // namespace palimpsest::kernels::cuda::abn_detail
