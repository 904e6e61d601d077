#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/kernels/cuda/device/platform.cuh"

#include <cstdint>
#include <type_traits>

/// 16 bytes of a tensor in registers: as they are stored, and as numbers of the accumulate type.
namespace palimpsest::kernels::cuda {

/// Values of S per access: 16 bytes of them, but one f64, since the arithmetic of two takes too many
/// registers.
template <class S>
inline constexpr int kLanes = sizeof(S) == 8 ? 1 : 16 / sizeof(S);

/// The values of one access, as they are stored.
template <class S>
struct alignas(16) Packed {
  S values[kLanes<S>];
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

/// V values of storage type S as numbers. V is kLanes<S>, or 1 if an address is no multiple of 16 bytes.
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
  static_assert(V == 1 || V == kLanes<S>);
  std::conditional_t<V == 1, S, Packed<S>> bits;

  __device__ __forceinline__ void load(const S* from) {
    if constexpr (V == 1)
      bits = *from;
    else
      bits = load16(reinterpret_cast<const Packed<S>*>(from));
  }

  __device__ __forceinline__ void store(S* to) const {
    if constexpr (V == 1)
      *to = bits;
    else
      store16(reinterpret_cast<Packed<S>*>(to), bits);
  }

  __device__ __forceinline__ Values<S, V> values() const {
    Values<S, V> v;
    if constexpr (V == 1) {
      v[0] = widen(bits);
    } else {
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; ++i) v[i] = widen(bits.values[i]);
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

  /// Values per 32-bit register. To rotate() by whole registers costs one move per register.
  static constexpr int kWord = V == 1 ? 1 : 4 / sizeof(S);

  /// Moves each value kStep places to the front, and the first kStep values to the end.
  template <int kStep>
  __device__ __forceinline__ void rotate() {
    if constexpr (V > 1) {
      const Packed<S> from = bits;
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; ++i) bits.values[i] = from.values[(i + kStep) % V];
    }
  }

  /// Rounds once.
  __device__ __forceinline__ void set(const Values<S, V>& v) {
    if constexpr (V == 1) {
      bits = narrow<S>(v[0]);
    } else if constexpr (sizeof(S) == 2) {
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; i += 2) {
        const uint32_t pair = narrowed_pair<S>(v[i], v[i + 1]);
        bits.values[i].bits = static_cast<uint16_t>(pair);
        bits.values[i + 1].bits = static_cast<uint16_t>(pair >> 16);
      }
    } else {
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; ++i) bits.values[i] = v[i];
    }
  }
};

}  // namespace palimpsest::kernels::cuda
