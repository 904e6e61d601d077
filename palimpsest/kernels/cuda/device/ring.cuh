#pragma once

#include "palimpsest/kernels/cuda/device/vector16.cuh"

#include <cstdint>

/// Vectors on their way from global memory to a thread, in shared memory: many bytes are under way all the time, also
/// while the thread computes, and they take no registers.
namespace palimpsest::kernels::cuda {

/// A block's slots, each for a batch of kUnroll vectors of kTensors tensors per thread. A thread reads only what it put
/// there, so that only it has to wait (walk_rows_ahead).
template <class S, int V, int kTensors, int kUnroll, int kSlots, int kBlock>
struct Ring {
  static constexpr int kBatches = kSlots;
  using Vector = decltype(Stored<S, V>::bits);
  struct alignas(sizeof(Vector)) Bytes {  // of a Vector, which shared memory does not construct
    uint32_t words[sizeof(Vector) / 4];
  };
  Bytes vectors[kSlots][kUnroll][kTensors][kBlock];

  /// May be read after the wait for its group of copies.
  __device__ __forceinline__ void start(int slot, int u, int tensor, const S* from) {
    start_copy(&vectors[slot][u][tensor][threadIdx.x], reinterpret_cast<const Bytes*>(from));
  }
  __device__ __forceinline__ void read(Stored<S, V>& to, int slot, int u, int tensor) const {
    to.bits = *reinterpret_cast<const Vector*>(&vectors[slot][u][tensor][threadIdx.x]);
  }
};

/// Whether a walk reads sums through a ring: channels-last in vectors of 16 bytes.
template <class Walk, class S>
inline constexpr bool kReadsAhead =
    Walk::kChannels == Walk::kVector && Walk::kVector > 1 && Walk::kVector == kLanes<S> && !Walk::kStrips;

}  // namespace palimpsest::kernels::cuda
