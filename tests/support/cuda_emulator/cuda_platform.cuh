#pragma once

// palimpsest/kernels/cuda/device/platform.cuh as the emulator provides it, and of CUDA itself what the
// kernels use.

#include "palimpsest/base/half.h"
#include "palimpsest/kernels/cuda/device/launch_shape.h"
#include "palimpsest/kernels/cuda/stream.h"
#include "tests/support/cuda_emulator/emulator.h"

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define PALIMPSEST_UNROLL
#define PALIMPSEST_NO_UNROLL
#define PALIMPSEST_ASSUME(condition) \
  static_cast<void>((condition) || (::palimpsest::cuda_emulator::fail("a false assumption: " #condition), 0))

// `name`_key identifies the declaration: each instantiation of a template has its own.
#define PALIMPSEST_SHARED(name, ...)                                     \
  using name##_type = __VA_ARGS__;                                       \
  static const char name##_key = 0;                                      \
  static_assert(std::is_trivially_default_constructible_v<name##_type>); \
  name##_type& name = *static_cast<name##_type*>(                        \
      ::palimpsest::cuda_emulator::shared_variable(&name##_key, sizeof(name##_type)))
#define PALIMPSEST_DYNAMIC_SHARED(name) \
  unsigned char* const name =           \
      static_cast<unsigned char*>(::palimpsest::cuda_emulator::dynamic_shared_memory())

extern palimpsest::cuda_emulator::Index3 threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads(
    palimpsest::cuda_emulator::Place place = palimpsest::cuda_emulator::Place::current()) {
  palimpsest::cuda_emulator::block_barrier(place);
}

inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}

inline int __ffs(int bits) {
  return __builtin_ffs(bits);
}

/// Other blocks see what the calling thread wrote before the fence before what it writes after.
inline void __threadfence() {
  palimpsest::cuda_emulator::fence();
}

namespace palimpsest::cuda_emulator {

/// The values of all lanes of the warp.
template <class T>
class Lanes {
 public:
  Lanes(unsigned mask, T value, Place place) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    if (mask != 0xffffffffu) fail("an operation with part of a warp: only full masks are supported");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    values_ = warp_exchange(bits, false, place);
  }
  // The slots belong to the scheduler, which ThreadSanitizer does not watch.
  __attribute__((no_sanitize("thread"))) T operator[](unsigned lane) const {
    T value;
    std::memcpy(&value, &values_[lane & 31], sizeof(T));
    return value;
  }

 private:
  const uint64_t* values_;
};

}  // namespace palimpsest::cuda_emulator

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       palimpsest::cuda_emulator::Place place = palimpsest::cuda_emulator::Place::current()) {
  if (mask != 0xffffffffu)
    palimpsest::cuda_emulator::fail("__syncwarp with part of a warp: only full masks are supported");
  palimpsest::cuda_emulator::warp_exchange(0, true, place);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane,
              palimpsest::cuda_emulator::Place place = palimpsest::cuda_emulator::Place::current()) {
  return palimpsest::cuda_emulator::Lanes<T>(mask, value, place)[static_cast<unsigned>(lane)];
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes,
                  palimpsest::cuda_emulator::Place place = palimpsest::cuda_emulator::Place::current()) {
  const unsigned own = threadIdx.x % 32;
  return palimpsest::cuda_emulator::Lanes<T>(mask, value, place)[own ^ static_cast<unsigned>(lanes)];
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by,
                   palimpsest::cuda_emulator::Place place = palimpsest::cuda_emulator::Place::current()) {
  const unsigned own = threadIdx.x % 32;  // a lane without a source gets its own value
  return palimpsest::cuda_emulator::Lanes<T>(mask, value, place)[own + by < 32 ? own + by : own];
}

inline unsigned __ballot_sync(
    unsigned mask, int predicate,
    palimpsest::cuda_emulator::Place place = palimpsest::cuda_emulator::Place::current()) {
  const palimpsest::cuda_emulator::Lanes<int> lanes(mask, predicate, place);
  unsigned set = 0;
  for (unsigned i = 0; i < 32; ++i) set |= (lanes[i] != 0 ? 1u : 0u) << i;
  return set;
}

inline int __any_sync(unsigned mask, int predicate,
                      palimpsest::cuda_emulator::Place place = palimpsest::cuda_emulator::Place::current()) {
  return __ballot_sync(mask, predicate, place) != 0;
}

/// Relaxed, as in CUDA: no other access is ordered by it.
template <class T>
T atomicAdd(T* address, T value) {
  if constexpr (std::is_integral_v<T>) {
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
  } else {
    T old = *address, sum;
    do sum = old + value;
    while (!__atomic_compare_exchange(address, &old, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
  }
}

inline unsigned atomicOr(unsigned* address, unsigned bits) {
  return __atomic_fetch_or(address, bits, __ATOMIC_RELAXED);
}

template <class T>
T atomicExch(T* address, T value) {
  T old;
  __atomic_exchange(address, &value, &old, __ATOMIC_RELAXED);
  return old;
}

namespace palimpsest::kernels::cuda {

inline void forget_memory() {}

template <class T>
void check_vector(const T* address, const char* access) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  const auto off = reinterpret_cast<std::uintptr_t>(address) % sizeof(T);
  if (off != 0)
    cuda_emulator::fail("misaligned " + std::to_string(sizeof(T)) + "-byte " + access + ", " +
                        std::to_string(off) + " bytes off");
}

template <class T>
T load_vector(const T* from) {
  check_vector(from, "load");
  T value;
  std::memcpy(static_cast<void*>(&value), from, sizeof(T));
  return value;
}

template <class T>
void store_vector(T* to, const T& value) {
  check_vector(to, "store");
  std::memcpy(static_cast<void*>(to), &value, sizeof(T));
}

template <class T>
void start_copy(T* to_shared, const T* from) {
  check_vector(to_shared, "copy");
  check_vector(from, "copy");
  cuda_emulator::start_copy(to_shared, from, sizeof(T));
}

inline void commit_copies() {
  cuda_emulator::commit_copies();
}

template <int kNewest>
void wait_for_copies_but() {
  cuda_emulator::wait_for_copies_but(kNewest);
}

inline void wait_for_copies() {
  commit_copies();
  wait_for_copies_but<0>();
}

// One launch runs after the other.
inline void start_next_launch() {}
inline void wait_for_launch_before() {
  cuda_emulator::wait_for_launch_before();
}

inline float widened(Float16 v) {
  return static_cast<float>(static_cast<double>(v));
}
inline float widened(BFloat16 v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}
template <class S>
S narrowed(float v) {
  return S(static_cast<double>(v));
}
template <class S>
uint32_t narrowed_pair(float low, float high) {
  return narrowed<S>(low).bits | static_cast<uint32_t>(narrowed<S>(high).bits) << 16;
}

template <class S>
void widened_pair(uint32_t bits, float& low, float& high) {
  S pair[2];
  std::memcpy(static_cast<void*>(pair), &bits, 4);
  low = widened(pair[0]), high = widened(pair[1]);
}

inline unsigned cluster_rank() {
  return cuda_emulator::cluster_rank();
}
inline unsigned cluster_size() {
  return cuda_emulator::cluster_size();
}
inline void cluster_sync(cuda_emulator::Place place = cuda_emulator::Place::current()) {
  cuda_emulator::cluster_barrier(place);
}
inline void cluster_arrive(cuda_emulator::Place place = cuda_emulator::Place::current()) {
  cuda_emulator::cluster_arrive(place);
}
inline void cluster_wait() {
  cuda_emulator::cluster_wait();
}
template <class T>
T* in_cluster_block(T* shared, unsigned rank) {
  using Plain = std::remove_const_t<T>;
  return static_cast<T*>(cuda_emulator::in_cluster_block(const_cast<Plain*>(shared), rank));
}

inline Device current_device() {
  const auto& settings = cuda_emulator::settings();
  return {settings.shared_bytes_per_block, settings.max_cluster, settings.multiprocessors};
}

inline void* new_mapped_memory(std::size_t bytes) {
  return std::calloc(bytes, 1);
}

inline bool capture_is_on(Stream stream) {
  return cuda_emulator::capture_of(stream) != 0;
}

inline StreamKey key_of(Stream stream) {
  return {cuda_emulator::settings().device, cuda_emulator::capture_of(stream),
          reinterpret_cast<std::uintptr_t>(stream)};
}

inline void* new_zeroed_device_memory(std::size_t bytes) {
  void* const memory = cuda_emulator::new_device_memory(bytes);
  if (!memory) throw std::runtime_error("out of memory");
  return memory;
}

inline bool clear_in_order(void* memory, std::size_t bytes, Stream) {
  if (cuda_emulator::settings().can_clear) std::memset(memory, 0, bytes);
  return cuda_emulator::settings().can_clear;
}

inline bool call_with_graph_end(Stream stream, void (*function)(void*), void* argument) {
  return cuda_emulator::call_with_graph_end(stream, function, argument);
}

template <class... Parameters>
int64_t active_clusters(const LaunchShape& shape, void (*)(Parameters...)) {
  return cuda_emulator::settings().active_clusters[std::countr_zero(static_cast<unsigned>(shape.cluster))];
}

template <class... Parameters, class... Arguments>
void launch(const char* name, const LaunchShape& shape, Stream, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                "parameters are copied to the device byte by byte");
  cuda_emulator::run({.kernel = name,
                      .grid = {static_cast<unsigned>(shape.blocks), 1, 1},
                      .threads = static_cast<unsigned>(shape.threads),
                      .shared_bytes = shape.shared_bytes,
                      .follows = shape.follows,
                      .cluster = static_cast<unsigned>(shape.cluster)},
                     [&] { kernel(static_cast<Parameters>(arguments)...); });
}

}  // namespace palimpsest::kernels::cuda
