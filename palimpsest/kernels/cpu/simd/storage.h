#pragma once

// Only for units of one instruction set, as vector.h. Values lie in memory in the accumulate type itself, or
// in 16 bits, which are widened to f32 when they are loaded and rounded once when they are stored.

#include "palimpsest/base/dtype.h"
#include "palimpsest/kernels/cpu/simd/vector.h"

#include <cstdint>

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {

template <class S>
constexpr bool kIs16Bit = sizeof(S) == 2;

/// Vectors of L lanes, by the type of a lane; a single lane is the type itself.
template <class Lane, int64_t kLanes>
struct LanesOf {
  typedef Lane type __attribute__((vector_size(kLanes * sizeof(Lane))));
};
template <class Lane>
struct LanesOf<Lane, 1> {
  using type = Lane;
};
template <class Lane, class V>
using Lanes = typename LanesOf<Lane, static_cast<int64_t>(sizeof(V) / sizeof(float))>::type;

template <class To, class From>
PALIMPSEST_HOST_DEVICE To convert_lanes(From v) {
  if constexpr (sizeof(From) == sizeof(uint16_t) || sizeof(To) == sizeof(uint16_t))
    return static_cast<To>(v);
  else
    return __builtin_convertvector(v, To);
}

/// Returns f32 from bits that hold 16-bit values in their low halves, lane by lane.
template <class V, class U>
PALIMPSEST_HOST_DEVICE V widen(const BFloat16*, U bits) {
  U wide = bits << 16;
  V v;
  __builtin_memcpy(&v, &wide, sizeof v);
  return v;
}

template <class V, class U>
PALIMPSEST_HOST_DEVICE V widen(const Float16*, U bits) {
  // The exponents of the two formats are 112 apart. A product corrects that, for subnormals too. Infinity and
  // NaN keep all exponent bits.
  const U size = (bits & 0x7fffu) << 13;
  U scaled_bits;
  V scaled;
  __builtin_memcpy(&scaled, &size, sizeof scaled);
  scaled *= 0x1p112f;
  __builtin_memcpy(&scaled_bits, &scaled, sizeof scaled);
  const U special = size | 0x7f800000u;
  U wide = (size >= (0x7c00u << 13) ? special : scaled_bits) | ((bits & 0x8000u) << 16);
  V v;
  __builtin_memcpy(&v, &wide, sizeof v);
  return v;
}

/// Returns the 16-bit values nearest to f32 values (ties to even), in the low halves of the lanes.
template <class U>
PALIMPSEST_HOST_DEVICE U narrow(const BFloat16*, U bits) {
  const U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U nan = (bits >> 16) | 0x40u;
  return (bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
}

template <class U>
PALIMPSEST_HOST_DEVICE U narrow(const Float16*, U bits) {
  const U size = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
  const U normal = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
  // For subnormals, adding 0.5 aligns the mantissa so that the addition itself rounds.
  Lanes<float, U> sum;
  __builtin_memcpy(&sum, &size, sizeof sum);
  sum += 0.5f;
  U subnormal;
  __builtin_memcpy(&subnormal, &sum, sizeof sum);
  subnormal -= 0x3f000000u;
  const U infinity = U{} + 0x7c00u, nan = U{} + 0x7e00u;
  const U large = size > 0x7f800000u ? nan : infinity;
  const U finite = size < (113u << 23) ? subnormal : normal;
  return (size >= (143u << 23) ? large : finite) | sign;
}

/// Loads a vector V in the accumulate type from storage in S; assumes no alignment.
template <class V, class S>
PALIMPSEST_HOST_DEVICE V load_as(const S* from) {
  if constexpr (!kIs16Bit<S>) {
    return load<V>(from);
  } else {
    using Narrow = Lanes<uint16_t, V>;
    Narrow bits;
    __builtin_memcpy(&bits, from, sizeof bits);
// The forms with a mask: without one, gcc 12 warns about its own header.
#if defined(__AVX512BW__) && PALIMPSEST_VECTOR_BYTES == 64
    if constexpr (sizeof(V) == 64 && __is_same(S, Float16))
      return (V)_mm512_maskz_cvtph_ps(0xffff, (__m256i)bits);
    // gcc would widen in two halves, with five instructions.
    if constexpr (sizeof(V) == 64 && __is_same(S, BFloat16))
      return (V)_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)bits), 16);
#elif defined(__F16C__) && PALIMPSEST_VECTOR_BYTES == 32
    if constexpr (sizeof(V) == 32 && __is_same(S, Float16)) return (V)_mm256_cvtph_ps((__m128i)bits);
#endif
    return widen<V>(static_cast<const S*>(nullptr), convert_lanes<Lanes<uint32_t, V>>(bits));
  }
}

#if defined(__AVX512BW__) && PALIMPSEST_VECTOR_BYTES == 64
/// narrow() of BFloat16 without the shift: 7 instructions per vector instead of 11, of 30 in a whole sweep.
template <class V>
PALIMPSEST_HOST_DEVICE Lanes<uint32_t, V> round_to_upper_half(V v) {
  Lanes<uint32_t, V> bits;
  __builtin_memcpy(&bits, &v, sizeof bits);
  const Lanes<uint32_t, V> rounded = bits + 0x7fffu + ((bits >> 16) & 1u), nan = bits | 0x400000u;
  return v == v ? rounded : nan;
}

template <class U>
PALIMPSEST_HOST_DEVICE Lanes<uint16_t, U> upper_halves(U wide) {
  const auto halves = (typename LanesOf<uint16_t, sizeof(U) / sizeof(uint16_t)>::type) wide;
  return __builtin_shufflevector(halves, halves, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
#endif

/// Returns the bits of v rounded to S.
template <class S, class V>
PALIMPSEST_HOST_DEVICE Lanes<uint16_t, V> round_to_16(V v) {
#if defined(__AVX512BW__) && PALIMPSEST_VECTOR_BYTES == 64
  if constexpr (sizeof(V) == 64 && __is_same(S, Float16))
    return (Lanes<uint16_t, V>)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
  if constexpr (sizeof(V) == 64 && __is_same(S, BFloat16)) return upper_halves(round_to_upper_half(v));
#elif defined(__F16C__) && PALIMPSEST_VECTOR_BYTES == 32
  if constexpr (sizeof(V) == 32 && __is_same(S, Float16))
    return (Lanes<uint16_t, V>)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
#endif
  Lanes<uint32_t, V> bits;
  __builtin_memcpy(&bits, &v, sizeof bits);
  return convert_lanes<Lanes<uint16_t, V>>(narrow(static_cast<const S*>(nullptr), bits));
}

/// Returns v, rounded to S and widened again.
template <class S, class V>
PALIMPSEST_HOST_DEVICE V as_stored(V v) {
  if constexpr (!kIs16Bit<S>) {
    return v;
  } else {
    const Lanes<uint16_t, V> bits = round_to_16<S>(v);
    S stored[sizeof(V) / sizeof(float)];
    __builtin_memcpy(static_cast<void*>(stored), &bits, sizeof bits);
    return load_as<V>(stored);
  }
}

/// Stores v, rounded once if S is narrower. `streaming` requires that `to` lies on the boundary of such a
/// vector.
template <class S, class V>
PALIMPSEST_HOST_DEVICE void store_as(S* to, V v, bool streaming) {
  if constexpr (!kIs16Bit<S>) {
    if (streaming)
      store_streaming(to, v);
    else
      store(to, v);
  } else {
    const Lanes<uint16_t, V> bits = round_to_16<S>(v);
    if (streaming)
      store_streaming(to, bits);
    else
      __builtin_memcpy(static_cast<void*>(to), &bits, sizeof bits);
  }
}

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
