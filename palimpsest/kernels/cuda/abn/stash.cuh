#pragma once

#include "palimpsest/kernels/cuda/device/walk.cuh"

#include <cstdint>

/// How a block brings its share of a panel into shared memory: by copies without registers, all of which are
/// under way at once. A thread puts there what it reads itself, so that only it has to wait.
namespace palimpsest::kernels::cuda::abn_detail {

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
  walk.template vectors<kUnroll>(cut.first_piece(segment), cut.first_piece(segment + 1),
                                 [&](const int64_t(&at)[kUnroll], int serial) {
                                   PALIMPSEST_UNROLL
                                   for (int u = 0; u < kUnroll; ++u)
                                     if (at[u] >= 0) vector(at[u], serial + u * walk.step());
                                 });
  walk.edges(cut.first_edge(segment), cut.first_edge(segment + 1), edge);
}

}  // namespace palimpsest::kernels::cuda::abn_detail
