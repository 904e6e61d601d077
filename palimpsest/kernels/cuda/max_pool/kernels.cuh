#pragma once

#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/vector16.cuh"
#include "palimpsest/kernels/cuda/max_pool/geometry.cuh"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

/// The kernels of max pooling. Indices have the type of the geometry, addresses 64 bits.
namespace palimpsest::kernels::cuda::max_pool_detail {

template <int V>
struct alignas(V) Bytes {
  uint8_t at[V];
};

/// V maxima and their positions. Values of 16 bits are copied and never rounded; a register holds one with
/// its position, so that one instruction chooses both.
template <class S, int V>
struct Maxima {
  using T = accumulate_t<S>;
  static constexpr bool kTagged = sizeof(S) == 2;

  __device__ __forceinline__ Maxima(int position) {
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) {
      number[i] = static_cast<T>(-INFINITY);
      tag[i] = static_cast<uint32_t>(position);
      if constexpr (kTagged) tag[i] |= uint32_t{narrow<S>(number[i]).bits} << 16;
    }
  }
  /// The first of equal values counts, and the last NaN.
  __device__ __forceinline__ void take(const Stored<S, V>& values, int position) {
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) {
      const T v = values.value(i);
      const uint32_t own = tagged(values, i, static_cast<uint32_t>(position));
      const bool takes = v > number[i] || v != v;
      number[i] = takes ? v : number[i];
      tag[i] = takes ? own : tag[i];
    }
  }
  __device__ __forceinline__ void store(S* values, uint8_t* positions) const {
    Stored<S, V> stored;
    Bytes<V> bytes;
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) {
      bytes.at[i] = static_cast<uint8_t>(tag[i]);
      if constexpr (!kTagged)
        stored.set_value(i, number[i]);
      else if constexpr (V == 1)
        stored.bits.bits = static_cast<uint16_t>(tag[i] >> 16);
      else
        stored.bits.values[i].bits = static_cast<uint16_t>(tag[i] >> 16);
    }
    stored.store(values);
    if (positions) *reinterpret_cast<Bytes<V>*>(positions) = bytes;
  }

 private:
  // One instruction: a bf16 lies there already as the upper half of its number, a f16 in a half of a
  // register.
  __device__ __forceinline__ static uint32_t tagged(const Stored<S, V>& values, int i, uint32_t position) {
    if constexpr (!kTagged) {
      return position;
    } else if constexpr (V == 1) {
      return uint32_t{values.bits.bits} << 16 | position;
    } else if constexpr (std::is_same_v<S, BFloat16>) {
      return uint32_t{values.bits.values[i].bits} << 16 | position;
    } else {
      uint32_t word = 0;
      memcpy(&word, &values.bits.values[i / 2 * 2], 4);
      return i % 2 ? (word & 0xffff0000u) | position : word * 0x10000u + position;
    }
  }

  Values<S, V> number;
  uint32_t tag[V];  // the position; above it a value of 16 bits
};

/// max_pool_forward. Grid: one thread per output vector, kThreads per block. Shared: nothing. Registers: at
/// most 64, so that four blocks run per multiprocessor.
template <class S, int V, class N, class Axis>
__global__ void __launch_bounds__(kThreads, 4)
    max_pool_forward_kernel(Vectors<N> in, Vectors<N> out, Axis down, Axis right, const S* x, S* z,
                            uint8_t* argmax) {
  using Number = typename Vectors<N>::Number;
  const int64_t number = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (number >= out.count) return;
  const Place<N> o(out, static_cast<N>(number));
  const N top = down.start(o.h), left = right.start(o.w);
  const int first_row = down.first(top, in.h), first_column = right.first(left, in.w);
  // The position that counts if all values are -infinity.
  Maxima<S, V> maxima(first_row < 0 || first_column < 0 ? int{kNoPosition}
                                                        : first_row * right.positions() + first_column);
  const Number begin = in.at(o.image, top, left, o.inner),
               row = static_cast<Number>(in.w) * static_cast<Number>(in.inner);
  down.visit_positions(top, in.h, [&](int ky, N rows) {
    const Number begin_of_row = begin + static_cast<Number>(rows) * row;
    right.visit_positions(left, in.w, [&](int kx, N columns) {
      const Number at = begin_of_row + static_cast<Number>(columns) * static_cast<Number>(in.inner);
      Stored<S, V> values;
      values.load(x + static_cast<int64_t>(at) * V);
      maxima.take(values, ky * right.positions() + kx);
    });
  });
  maxima.store(z + number * V, argmax ? argmax + number * V : nullptr);
}

/// max_pool_backward. Grid: one thread per input vector, which adds up the windows around it in row order.
/// The rest is as in forward.
template <class S, int V, class N, class Axis>
__global__ void __launch_bounds__(kThreads, 4)
    max_pool_backward_kernel(Vectors<N> in, Vectors<N> out, Axis down, Axis right, const S* dz,
                             const uint8_t* argmax, S* dx) {
  const int64_t number = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (number >= in.count) return;
  const Place<N> at(in, static_cast<N>(number));
  Values<S, V> sum;
  PALIMPSEST_UNROLL
  for (int i = 0; i < V; ++i) sum[i] = 0;
  down.visit_windows(at.h, out.h, [&](N oh, int ky) {
    right.visit_windows(at.w, out.w, [&](N ow, int kx) {
      const int64_t o = static_cast<int64_t>(out.at(at.image, oh, ow, at.inner)) * V;
      const auto place = *reinterpret_cast<const Bytes<V>*>(argmax + o);
      Stored<S, V> gradient;
      gradient.load(dz + o);
      const int position = ky * right.positions() + kx;
      PALIMPSEST_UNROLL
      // Adds 0 rather than nothing: under a condition the compiler splits the wide load.
      for (int i = 0; i < V; ++i) sum[i] += place.at[i] == position ? gradient.value(i) : accumulate_t<S>(0);
    });
  });
  Stored<S, V> result;
  result.set(sum);
  result.store(dx + number * V);
}

/// max_pool_backward for windows in steps of 2. A tile is two rows and two columns, counted from the first
/// padding pixel. Windows begin at the tiles' first pixels, so a tile's four pixels lie in windows that begin
/// in it, above it and to its left, and these are read once. Grid: one thread per vector of a tile; `tiles`
/// has the tiles of all images. The rest is as in forward.
template <class S, int V, int kKernel>
__global__ void __launch_bounds__(kThreads, 4)
    max_pool_backward_tiles_kernel(Vectors<int32_t> tiles, Vectors<int32_t> in, Vectors<int32_t> out,
                                   StepTwoAxis<kKernel> down, StepTwoAxis<kKernel> right, const S* dz,
                                   const uint8_t* argmax, S* dx) {
  const int64_t number = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (number >= tiles.count) return;
  const Place<int32_t> tile(tiles, static_cast<int32_t>(number));
  constexpr int kBefore = (kKernel - 1) / 2;  // windows that begin before the tile and reach into it
  Values<S, V> sums[2][2];
  PALIMPSEST_UNROLL
  for (int pixel = 0; pixel < 4; ++pixel) PALIMPSEST_UNROLL
  for (int i = 0; i < V; ++i) sums[pixel / 2][pixel % 2][i] = 0;
  PALIMPSEST_UNROLL
  for (int above = kBefore; above >= 0; --above) PALIMPSEST_UNROLL
  for (int before = kBefore; before >= 0; --before) {
    const int32_t oh = tile.h - above, ow = tile.w - before;
    if (static_cast<uint32_t>(oh) >= static_cast<uint32_t>(out.h) ||
        static_cast<uint32_t>(ow) >= static_cast<uint32_t>(out.w))
      continue;
    const int64_t o = static_cast<int64_t>(out.at(tile.image, oh, ow, tile.inner)) * V;
    const auto place = *reinterpret_cast<const Bytes<V>*>(argmax + o);
    Stored<S, V> gradient;
    gradient.load(dz + o);
    PALIMPSEST_UNROLL
    for (int i = 0; i < V; ++i) {
      const accumulate_t<S> g = gradient.value(i);
      PALIMPSEST_UNROLL
      for (int r = 0; r < 2; ++r) PALIMPSEST_UNROLL
      for (int c = 0; c < 2; ++c) {
        const int ky = 2 * above + r, kx = 2 * before + c;
        if (ky < kKernel && kx < kKernel)
          sums[r][c][i] += place.at[i] == ky * kKernel + kx ? g : accumulate_t<S>(0);
      }
    }
  }
  PALIMPSEST_UNROLL
  for (int r = 0; r < 2; ++r) PALIMPSEST_UNROLL
  for (int c = 0; c < 2; ++c) {
    const int32_t h = down.start(tile.h) + r, w = right.start(tile.w) + c;
    if (static_cast<uint32_t>(h) >= static_cast<uint32_t>(in.h) ||
        static_cast<uint32_t>(w) >= static_cast<uint32_t>(in.w))
      continue;
    Stored<S, V> result;
    result.set(sums[r][c]);
    result.store(dx + static_cast<int64_t>(in.at(tile.image, h, w, tile.inner)) * V);
  }
}

}  // namespace palimpsest::kernels::cuda::max_pool_detail
