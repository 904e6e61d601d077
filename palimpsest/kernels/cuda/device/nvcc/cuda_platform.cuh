#pragma once

// device/platform.cuh as nvcc provides it.

#include "palimpsest/base/half.h"
#include "palimpsest/kernels/cuda/device/launch_shape.h"
#include "palimpsest/kernels/cuda/device/nvcc/occupancy.cuh"
#include "palimpsest/kernels/cuda/stream.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#define PALIMPSEST_UNROLL _Pragma("unroll")
#define PALIMPSEST_NO_UNROLL _Pragma("unroll 1")
#define PALIMPSEST_ASSUME(condition) __builtin_assume(condition)

#define PALIMPSEST_SHARED(name, ...) \
  using name##_type = __VA_ARGS__;   \
  __shared__ name##_type name
#define PALIMPSEST_DYNAMIC_SHARED(name)                \
  extern __shared__ uint4 palimpsest_dynamic_shared[]; \
  unsigned char* const name = reinterpret_cast<unsigned char*>(palimpsest_dynamic_shared)

namespace palimpsest::kernels::cuda {

template <std::size_t kBytes>
using VectorBits =
    std::conditional_t<kBytes == 16, uint4, std::conditional_t<kBytes == 8, uint2, unsigned int>>;

template <class T>
__device__ __forceinline__ T load_vector(const T* from) {
  static_assert(sizeof(VectorBits<sizeof(T)>) == sizeof(T));
  const auto bits = *reinterpret_cast<const VectorBits<sizeof(T)>*>(from);
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}

// The intrinsic, because the compiler splits a plain store into parts if it sees how `value` was made.
template <class T>
__device__ __forceinline__ void store_vector(T* to, const T& value) {
  VectorBits<sizeof(T)> bits;
  static_assert(sizeof(bits) == sizeof(T));
  memcpy(&bits, &value, sizeof(T));
  __stwb(reinterpret_cast<VectorBits<sizeof(T)>*>(to), bits);
}

// No instruction: it only keeps the compiler from holding values of memory in registers.
__device__ __forceinline__ void forget_memory() {
  asm volatile("" ::: "memory");
}

template <class T>
__device__ __forceinline__ void start_copy(T* to_shared, const T* from) {
  static_assert(sizeof(VectorBits<sizeof(T)>) == sizeof(T));
  __pipeline_memcpy_async(to_shared, from, sizeof(T));
}

__device__ __forceinline__ void commit_copies() {
  __pipeline_commit();
}

// The intrinsic lets the compiler read memory before the wait.
template <int kNewest>
__device__ __forceinline__ void wait_for_copies_but() {
  __pipeline_wait_prior(kNewest);
  forget_memory();
}

__device__ __forceinline__ void wait_for_copies() {
  commit_copies();
  wait_for_copies_but<0>();
}

__device__ __forceinline__ void start_next_launch() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

__device__ __forceinline__ void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

__device__ __forceinline__ float widened(Float16 v) {
  return __half2float(__ushort_as_half(v.bits));
}
__device__ __forceinline__ float widened(BFloat16 v) {
  return __uint_as_float(static_cast<uint32_t>(v.bits) << 16);
}

template <class S>
__device__ __forceinline__ void widened_pair(uint32_t bits, float& low, float& high) {
  if constexpr (std::is_same_v<S, Float16>) {
    __half2 pair;
    memcpy(&pair, &bits, 4);
    low = __low2float(pair), high = __high2float(pair);
  } else {
    low = __uint_as_float(bits << 16), high = __uint_as_float(bits & 0xffff0000u);
  }
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

// One instruction rounds both values.
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

// Clusters need sm_90. Older devices get launches with one block per cluster.
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

__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
#else
  __syncthreads();
#endif
}

// Relaxed: the barrier orders no memory, so that it needs no fence.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive_relaxed();
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  __cluster_barrier_wait();
#endif
}

template <class T>
__device__ __forceinline__ T* in_cluster_block(T* shared, unsigned rank) {
#if __CUDA_ARCH__ >= 900
  return static_cast<T*>(__cluster_map_shared_rank(const_cast<std::remove_const_t<T>*>(shared), rank));
#else
  return shared;
#endif
}

/// Throws std::runtime_error with file, line and CUDA's error text if `call` failed.
#define PALIMPSEST_CUDA_CHECK(call) ::palimpsest::kernels::cuda::check((call), __FILE__, __LINE__, #call)

inline void check(cudaError_t error, const char* file, int line, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // libtorch would report it again, at another operator
  std::string name = file;
  name = name.substr(name.rfind('/') + 1);
  throw std::runtime_error(name + ":" + std::to_string(line) + ": " + what +
                           " failed: " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

inline Device current_device() {
  constexpr int kDevices = 64;
  static std::atomic<const Device*>
      known[kDevices];  // never freed: a thread may read one while the program ends
  int number = 0;
  PALIMPSEST_CUDA_CHECK(cudaGetDevice(&number));
  std::atomic<const Device*>& slot = known[number % kDevices];
  const Device* device = slot.load(std::memory_order_acquire);
  if (!device) {
    int bytes = 0, clusters = 0, multiprocessors = 0;
    PALIMPSEST_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, number));
    PALIMPSEST_CUDA_CHECK(cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, number));
    PALIMPSEST_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, number));
    // Every device with clusters has clusters of 8. Threads that ask at the same time store equal answers.
    device = new Device{bytes, clusters ? 8 : 1, multiprocessors};
    slot.store(device, std::memory_order_release);
  }
  return *device;
}

template <class... Parameters>
int64_t active_clusters(const LaunchShape& shape, void (*kernel)(Parameters...)) {
  int number = 0;
  PALIMPSEST_CUDA_CHECK(cudaGetDevice(&number));
  return known_active_clusters(shape, reinterpret_cast<const void*>(kernel), number,
                               current_device().multiprocessors);
}

template <class... Parameters, class... Arguments>
void launch(const char* name, const LaunchShape& shape, Stream stream, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  const auto checked = [&](cudaError_t error) {
    if (error == cudaSuccess) return;
    cudaGetLastError();  // libtorch would report it again, at another operator
    throw std::runtime_error(std::string("[") + name + "] launch of " + std::to_string(shape.blocks) +
                             " blocks of " + std::to_string(shape.threads) + " threads, " +
                             std::to_string(shape.shared_bytes) + " bytes of shared memory and clusters of " +
                             std::to_string(shape.cluster) + " failed: " + cudaGetErrorString(error));
  };
  const auto* const code = reinterpret_cast<const void*>(kernel);
  bool overlaps = false;
  if (shape.shared_bytes > 0 || shape.follows) {
    int number = 0;
    checked(cudaGetDevice(&number));
    if (shape.shared_bytes > 0) checked(allow_shared_bytes(code, number, shape.shared_bytes));
    // Devices with clusters can, and no others.
    overlaps = shape.follows && current_device().max_cluster > 1 && is_for_hopper(code, number);
  }
  LaunchAttributes attributes;
  cudaLaunchConfig_t config = configuration(shape, overlaps, attributes);
  config.stream = stream;
  checked(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

/// While it lives, this thread may allocate though a stream captures. In the usual mode of capture the call
/// would fail, and the capture with it, whichever thread makes it. The allocation is no part of the graph.
class AllocationDuringCapture {
 public:
  AllocationDuringCapture() { PALIMPSEST_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~AllocationDuringCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  AllocationDuringCapture(const AllocationDuringCapture&) = delete;
  AllocationDuringCapture& operator=(const AllocationDuringCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // afterwards: what it was
};

inline void* new_mapped_memory(std::size_t bytes) {
  const AllocationDuringCapture allowed;
  void* memory = nullptr;
  PALIMPSEST_CUDA_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
  memset(memory, 0, bytes);
  return memory;
}

inline void* new_zeroed_device_memory(std::size_t bytes) {
  const AllocationDuringCapture allowed;
  void* memory = nullptr;
  if (const cudaError_t error = cudaMalloc(&memory, bytes); error != cudaSuccess) {
    cudaGetLastError();  // libtorch would report it again
    throw std::runtime_error(cudaGetErrorString(error));
  }
  // On a stream of its own: the default stream may not be used while a blocking stream captures.
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(memory, 0, bytes, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  if (error != cudaSuccess) cudaFree(memory);
  PALIMPSEST_CUDA_CHECK(error);
  return memory;
}

inline bool clear_in_order(void* memory, std::size_t bytes, Stream stream) {
  const bool done = cudaMemsetAsync(memory, 0, bytes, stream) == cudaSuccess;
  if (!done) cudaGetLastError();  // the caller throws the error that matters
  return done;
}

inline bool capture_is_on(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  PALIMPSEST_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

inline StreamKey key_of(Stream stream) {
  StreamKey key;
  PALIMPSEST_CUDA_CHECK(cudaGetDevice(&key.device));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  PALIMPSEST_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &id));
  if (status == cudaStreamCaptureStatusActive) {
    key.capture = id, key.stream = reinterpret_cast<uintptr_t>(stream);
  } else {
    // Not the handle: a new stream may get that of a destroyed one, and all threads' default streams share
    // one.
    PALIMPSEST_CUDA_CHECK(cudaStreamGetId(stream, &id));
    key.stream = id;
  }
  return key;
}

inline bool call_with_graph_end(Stream stream, void (*function)(void*), void* argument) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  cudaUserObject_t object = nullptr;
  // An object that the graph does not take is never released, and so never calls `function`.
  const bool done =
      cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph) == cudaSuccess &&
      status == cudaStreamCaptureStatusActive &&
      cudaUserObjectCreate(&object, argument, function, 1, cudaUserObjectNoDestructorSync) == cudaSuccess &&
      cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove) == cudaSuccess;
  if (!done) cudaGetLastError();
  return done;
}

}  // namespace palimpsest::kernels::cuda
