#pragma once

// What kernels use beyond plain CUDA C++, as nvcc has it. The twin for the emulator is
// tests/support/cuda_emulator/device.h; device.h picks one.

#include "palimpsest/base/half.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#define PALIMPSEST_UNROLL _Pragma("unroll")
#define PALIMPSEST_NO_UNROLL _Pragma("unroll 1")

#define PALIMPSEST_SHARED(name, ...) \
  using name##_type = __VA_ARGS__;   \
  __shared__ name##_type name
#define PALIMPSEST_DYNAMIC_SHARED(name)                \
  extern __shared__ uint4 palimpsest_dynamic_shared[]; \
  unsigned char* const name = reinterpret_cast<unsigned char*>(palimpsest_dynamic_shared)

namespace palimpsest::kernels::cuda {

template <class T>
__device__ __forceinline__ T load16(const T* from) {
  static_assert(sizeof(T) == 16);
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  T value;
  memcpy(&value, &bits, 16);
  return value;
}

// To global memory. By the intrinsic: where it sees how the value was put together, the compiler makes four
// stores of a plain one.
template <class T>
__device__ __forceinline__ void store16(T* to, const T& value) {
  static_assert(sizeof(T) == 16);
  uint4 bits;
  memcpy(&bits, &value, 16);
  __stwb(reinterpret_cast<uint4*>(to), bits);
}

__device__ __forceinline__ float widened(Float16 v) {
  return __half2float(__ushort_as_half(v.bits));
}
__device__ __forceinline__ float widened(BFloat16 v) {
  return __uint_as_float(static_cast<uint32_t>(v.bits) << 16);
}

template <class S>
__device__ __forceinline__ S narrowed(float v) {
  S s;
  if constexpr (std::is_same_v<S, Float16>)
    s.bits = __half_as_ushort(__float2half_rn(v));
  else
    s.bits = __bfloat16_as_ushort(__float2bfloat16_rn(v));
  return s;
}

/// Two values in the 32 bits that they take side by side: one instruction for both.
template <class S>
__device__ __forceinline__ uint32_t narrowed_pair(float low, float high) {
  uint32_t bits;
  if constexpr (std::is_same_v<S, Float16>) {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&bits, &pair, 4);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&bits, &pair, 4);
  }
  return bits;
}

/// What lies in memory is read again after this, not kept in registers. No barrier, and no instruction.
__device__ __forceinline__ void forget_memory() {
  asm volatile("" ::: "memory");
}

// Clusters of blocks (sm_90 and later). Where there are none, a kernel is launched in clusters of one.
__device__ __forceinline__ unsigned cluster_rank() {
#if __CUDA_ARCH__ >= 900
  return __clusterRelativeBlockRank();
#else
  return 0;
#endif
}

__device__ __forceinline__ unsigned cluster_size() {
#if __CUDA_ARCH__ >= 900
  return __clusterSizeInBlocks();
#else
  return 1;
#endif
}

/// __syncthreads for all blocks of the cluster; what was written to shared memory before is seen after.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
#else
  __syncthreads();
#endif
}

/// Where `shared`, an address in this block's shared memory, lies in that of block `rank`.
template <class T>
__device__ __forceinline__ T* in_cluster_block(T* shared, unsigned rank) {
#if __CUDA_ARCH__ >= 900
  return static_cast<T*>(__cluster_map_shared_rank(const_cast<std::remove_const_t<T>*>(shared), rank));
#else
  return shared;
#endif
}

}  // namespace palimpsest::kernels::cuda
