#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/kernels/cuda/device/platform.cuh"

#include <cstdint>
#include <cstring>
#include <type_traits>

/// Up to 16 bytes of a tensor in registers: as they are stored, and as numbers of the accumulate type.
namespace palimpsest::kernels::cuda {

/// Values of S per access: 16 bytes of them, but one f64, since the arithmetic of two takes too many
/// registers.
template <class S>
inline constexpr int kLanes = sizeof(S) == 8 ? 1 : 16 / sizeof(S);

/// The values of one access, as they are stored.
template <class S, int V = kLanes<S>>
struct alignas(V * sizeof(S)) Packed {
  S values[V];
};

template <class S>
__device__ __forceinline__ accumulate_t<S> widen(S v) {
  if constexpr (sizeof(S) == 2)
    return widened(v);
  else
    return v;
}

template <class S>
__device__ __forceinline__ S narrow(accumulate_t<S> v) {
  if constexpr (sizeof(S) == 2)
    return narrowed<S>(v);
  else
    return v;
}

/// V values of storage type S as numbers. V is a power of two up to kLanes<S>.
template <class S, int V>
struct Values {
  using T = accumulate_t<S>;
  T at[V];

  __device__ __forceinline__ T& operator[](int i) { return at[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return at[i]; }
};

/// V values as they are stored. They take fewer registers than the numbers while a load is under way.
template <class S, int V>
struct Stored {
  static_assert(V <= kLanes<S> && (V & (V - 1)) == 0);
  std::conditional_t<V == 1, S, Packed<S, V>> bits;

  __device__ __forceinline__ void load(const S* from) {
    if constexpr (V == 1)
      bits = *from;
    else
      bits = load_vector(reinterpret_cast<const Packed<S, V>*>(from));
  }

  __device__ __forceinline__ void store(S* to) const {
    if constexpr (V == 1)
      *to = bits;
    else
      store_vector(reinterpret_cast<Packed<S, V>*>(to), bits);
  }

  /// Returns kCount values from value `first` on; both are even if a value has 16 bits and V > 1.
  template <int kCount = V>
  __device__ __forceinline__ Values<S, kCount> values(int first = 0) const {
    static_assert(V == 1 || sizeof(S) != 2 || kCount % 2 == 0);
    Values<S, kCount> v;
    if constexpr (V == 1) {
      v[0] = widen(bits);
    } else if constexpr (sizeof(S) == 2) {
      PALIMPSEST_UNROLL
      for (int i = 0; i < kCount; i += 2) widened_pair<S>(pair(first + i), v[i], v[i + 1]);
    } else {
      PALIMPSEST_UNROLL
      for (int i = 0; i < kCount; ++i) v[i] = widen(bits.values[first + i]);
    }
    return v;
  }

  __device__ __forceinline__ accumulate_t<S> value(int i) const {
    if constexpr (V == 1)
      return widen(bits);
    else
      return widen(bits.values[i]);
  }
  /// Rounds once.
  __device__ __forceinline__ void set_value(int i, accumulate_t<S> v) {
    if constexpr (V == 1)
      bits = narrow<S>(v);
    else
      bits.values[i] = narrow<S>(v);
  }

  /// Moves each value one place to the front, and the first to the end.
  __device__ __forceinline__ void rotate() {
    if constexpr (V > 1) {
      const Packed<S, V> from = bits;
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; ++i) bits.values[i] = from.values[(i + 1) % V];
    }
  }

  /// Sets kCount values from value `first` on, as values() returns them. Rounds once.
  template <int kCount>
  __device__ __forceinline__ void set(const Values<S, kCount>& v, int first = 0) {
    static_assert(V == 1 || sizeof(S) != 2 || kCount % 2 == 0);
    if constexpr (V == 1) {
      bits = narrow<S>(v[0]);
    } else if constexpr (sizeof(S) == 2) {
      PALIMPSEST_UNROLL
      for (int i = 0; i < kCount; i += 2) {
        const uint32_t word = narrowed_pair<S>(v[i], v[i + 1]);
        memcpy(static_cast<void*>(&bits.values[first + i]), &word, 4);
      }
    } else {
      PALIMPSEST_UNROLL
      for (int i = 0; i < kCount; ++i) bits.values[first + i] = v[i];
    }
  }

 private:
  // 16-bit values i and i + 1. Read as one word: nvcc would otherwise hold each value in a register of its
  // own.
  __device__ __forceinline__ uint32_t pair(int i) const {
    uint32_t word;
    memcpy(&word, &bits.values[i], 4);
    return word;
  }
};

/// Reads x from global memory.
template <class S>
struct FromMemory {
  const S* x;

  template <int V>
  __device__ __forceinline__ void read(Stored<S, V>& to, int64_t at, int) const {
    to.load(x + at);
  }
  __device__ __forceinline__ void read_edge(Stored<S, 1>& to, int64_t at, int) const { to.load(x + at); }
};

}  // namespace palimpsest::kernels::cuda
