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

/// Returns the f16 values nearest to f32 values (ties to even), in the low halves of the lanes.
template <class U>
PALIMPSEST_HOST_DEVICE U narrow_to_f16(U bits) {
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
#elif defined(__AVX2__) && PALIMPSEST_VECTOR_BYTES == 32
    if constexpr (sizeof(V) == 32 && __is_same(S, BFloat16))
      return (V)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)bits), 16);
#endif
#ifdef __F16C__
    // Single values, too: widen()'s product would lose subnormals where the processor flushes them.
    if constexpr (sizeof(V) == 4 && __is_same(S, Float16)) return _cvtsh_ss(bits);
    if constexpr (sizeof(V) == 32 && __is_same(S, Float16)) return (V)_mm256_cvtph_ps((__m128i)bits);
    if constexpr (sizeof(V) == 16 && __is_same(S, Float16)) {
      __m128i low{};
      __builtin_memcpy(&low, &bits, sizeof bits);
      return (V)_mm_cvtph_ps(low);
    }
#endif
    return widen<V>(static_cast<const S*>(nullptr), convert_lanes<Lanes<uint32_t, V>>(bits));
  }
}

/// Returns f32 bits whose upper halves are the bf16 values nearest to f32 values (ties to even); a NaN becomes a quiet
/// NaN. The lower halves are arbitrary.
template <class V>
PALIMPSEST_HOST_DEVICE Lanes<uint32_t, V> round_to_upper_half(V v) {
  Lanes<uint32_t, V> bits;
  __builtin_memcpy(&bits, &v, sizeof bits);
  const Lanes<uint32_t, V> rounded = bits + 0x7fffu + ((bits >> 16) & 1u), nan = bits | 0x400000u;
  return v == v ? rounded : nan;
}

/// Returns the upper half of each lane.
template <class U>
PALIMPSEST_HOST_DEVICE Lanes<uint16_t, U> upper_halves(U wide) {
  using Narrow = Lanes<uint16_t, U>;
// gcc 12 would take 8 instructions.
#if defined(__AVX512BW__) && PALIMPSEST_VECTOR_BYTES == 64
  if constexpr (sizeof(U) == 64) {
    const auto halves = (typename LanesOf<uint16_t, 32>::type)wide;
    return __builtin_shufflevector(halves, halves, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  }
#elif defined(__AVX2__) && PALIMPSEST_VECTOR_BYTES == 32
  if constexpr (sizeof(U) == 32) {
    const auto low = (__m256i)(wide >> 16);
    return (Narrow)_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  }
#endif
  return convert_lanes<Narrow>(wide >> 16);
}

/// Returns the bits of v rounded to S.
template <class S, class V>
PALIMPSEST_HOST_DEVICE Lanes<uint16_t, V> round_to_16(V v) {
  if constexpr (__is_same(S, BFloat16)) {
    return upper_halves(round_to_upper_half(v));
  } else {
#if defined(__AVX512BW__) && PALIMPSEST_VECTOR_BYTES == 64
    if constexpr (sizeof(V) == 64)
      return (Lanes<uint16_t, V>)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__) && PALIMPSEST_VECTOR_BYTES == 32
    if constexpr (sizeof(V) == 32)
      return (Lanes<uint16_t, V>)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
#endif
    Lanes<uint32_t, V> bits;
    __builtin_memcpy(&bits, &v, sizeof bits);
    return convert_lanes<Lanes<uint16_t, V>>(narrow_to_f16(bits));
  }
}

/// Returns v, rounded to S and widened again.
template <class S, class V>
PALIMPSEST_HOST_DEVICE V as_stored(V v) {
  if constexpr (!kIs16Bit<S>) {
    return v;
  } else if constexpr (__is_same(S, BFloat16)) {
    const Lanes<uint32_t, V> bits = round_to_upper_half(v) & 0xffff0000u;
    __builtin_memcpy(&v, &bits, sizeof v);
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

// ---- Steps: one register of values in memory

/// Vectors of accumulate type per step of a sweep: two if one register holds twice as many stored values.
template <class S, class V>
constexpr int kVectorsPerStep = kIs16Bit<S> && sizeof(V) == PALIMPSEST_VECTOR_BYTES ? 2 : 1;

/// How the values of a step lie in its two vectors. Any order does where all vectors of a step have it, as arguments
/// and sums per column may (abn/arguments.h, sum_columns), and in work on each value alone and sums of all values.
enum class Order {
  kHalves,     ///< the first half of the values, then the second
  kAlternate,  ///< for bf16: the first, third, ... value, then the second, fourth, ...: loads need no shuffle
};

/// The cheapest order for sweeps over S.
template <class S>
constexpr Order kAnyOrder =
    __is_same(S, BFloat16) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? Order::kAlternate : Order::kHalves;

/// Vector kPart of the step at `offset` in a tensor, `column` in its row.
template <Order kOrder, int kPart>
struct Place {
  int64_t offset, column;

  PALIMPSEST_HOST_DEVICE Place from(int64_t start) const { return {start + offset, column}; }
  /// The offset of the vector's own first value, and its column. Not for kAlternate, whose values are no neighbours.
  template <class T, class V>
  PALIMPSEST_HOST_DEVICE Place<Order::kHalves, 0> own() const {
    static_assert(kOrder == Order::kHalves);
    return {offset + kPart * lanes<T, V>(), column + kPart * lanes<T, V>()};
  }
};

/// Loads one vector of a step of a tensor.
template <class V, class S, Order kOrder, int kPart>
PALIMPSEST_HOST_DEVICE V load_at(const S* tensor, Place<kOrder, kPart> at) {
  if constexpr (kOrder == Order::kHalves) {
    return load_as<V>(tensor + at.template own<accumulate_t<S>, V>().offset);
  } else {
    Lanes<uint32_t, V> both;
    __builtin_memcpy(&both, static_cast<const void*>(tensor + at.offset), sizeof both);
    const Lanes<uint32_t, V> bits = kPart == 0 ? both << 16 : both & 0xffff0000u;
    V v;
    __builtin_memcpy(&v, &bits, sizeof v);
    return v;
  }
}

#if defined(__AVX512BF16__) && PALIMPSEST_VECTOR_BYTES == 64
/// Returns whether a lane of a or of b is subnormal.
template <class V>
PALIMPSEST_HOST_DEVICE bool any_subnormal(V a, V b) {
  constexpr int kSubnormal = 0x20;
  return (_mm512_fpclass_ps_mask((__m512)a, kSubnormal) | _mm512_fpclass_ps_mask((__m512)b, kSubnormal)) != 0;
}

/// Returns the values of the lower and of the upper half in turn.
PALIMPSEST_HOST_DEVICE __m512i alternate_halves(__m512i v) {
  const auto halves = (typename LanesOf<uint16_t, 32>::type)v;
  return (__m512i)__builtin_shufflevector(halves, halves, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                          23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#endif

template <class U>
PALIMPSEST_HOST_DEVICE void store_register(uint16_t* to, bool streaming, U bits) {
  if (streaming)
    store_streaming(to, bits);
  else
    store(to, bits);
}

/// U in lanes of 16 bits.
template <class U>
using Halves = typename LanesOf<uint16_t, static_cast<int64_t>(sizeof(U) / sizeof(uint16_t))>::type;

/// Returns max(a - b, 0), lane by lane.
template <class H>
PALIMPSEST_HOST_DEVICE H saturated_difference(H a, H b) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(H) == 64) return (H)_mm512_subs_epu16((__m512i)a, (__m512i)b);
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(H) == 32) return (H)_mm256_subs_epu16((__m256i)a, (__m256i)b);
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(H) == 16) return (H)_mm_subs_epu16((__m128i)a, (__m128i)b);
#endif
  return a > b ? a - b : H{};
}

/// Returns the lower halves of the lanes of `even` in the even lanes, the upper halves of those of `odd` in the others.
template <class U>
PALIMPSEST_HOST_DEVICE Halves<U> lower_and_upper_halves(U even, U odd) {
  using H = Halves<U>;
#if defined(__AVX512BW__)
  if constexpr (sizeof(U) == 64) return (H)_mm512_mask_blend_epi16(0xaaaaaaaa, (__m512i)even, (__m512i)odd);
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(U) == 32) return (H)_mm256_blend_epi16((__m256i)even, (__m256i)odd, 0xaa);
#endif
#if defined(__SSE4_1__)
  if constexpr (sizeof(U) == 16) return (H)_mm_blend_epi16((__m128i)even, (__m128i)odd, 0xaa);
#endif
  return (H)((even & 0xffffu) | (odd & 0xffff0000u));
}

/// Returns the bf16 values nearest to f32 values (ties to even), those of `even` and of `odd` in turn. The lower half
/// of a NaN must be 0, as it is in all results of arithmetic on bf16 values: other NaNs may become a number. For
/// little-endian processors.
template <class U>
PALIMPSEST_HOST_DEVICE Halves<U> round_in_turn(U even, U odd) {
  // 8 instructions for both vectors. In lanes of 32 bits these are 10, and 3 more to find a NaN.
  using H = Halves<U>;
  const H upper = lower_and_upper_halves(U(even >> 16), odd),
          lower = lower_and_upper_halves(even, U(odd << 16));
  // Bit 15: lower > 0x8000, or lower == 0x8000 and upper is odd.
  const H up = saturated_difference(lower, H(~upper & 1));
  return upper + (up >> 15);
}

/// Returns the even lanes, then the odd ones.
template <class H>
PALIMPSEST_HOST_DEVICE H even_then_odd(H v) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(H) == 64)
    return __builtin_shufflevector(v, v, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 1, 3, 5,
                                   7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(H) == 32) {
    const __m256i split = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5,
                                           8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    return (H)_mm256_permute4x64_epi64(_mm256_shuffle_epi8((__m256i)v, split), 0xd8);
  }
#endif
  if constexpr (sizeof(H) == 16) return __builtin_shufflevector(v, v, 0, 2, 4, 6, 1, 3, 5, 7);
}

/// Stores a step of one vector.
template <Order, class S, class V>
PALIMPSEST_HOST_DEVICE void store_step(S* to, bool streaming, V v) {
  store_as(to, v, streaming);
}

/// Stores a step of two vectors. In bf16 the lower half of a NaN must be 0 (round_in_turn). `streaming` requires that
/// `to` lies on a register's boundary.
template <Order kOrder, class S, class V>
PALIMPSEST_HOST_DEVICE void store_step(S* to, bool streaming, V first, V second) {
  using U = Lanes<uint32_t, V>;
  if constexpr (!__is_same(S, BFloat16) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__) {
    store_as(to, first, streaming);
    store_as(to + sizeof(V) / sizeof(float), second, streaming);
  } else {
#if defined(__AVX512BF16__) && PALIMPSEST_VECTOR_BYTES == 64
    // The processor's own rounding, which keeps NaN, but makes 0 of a subnormal number.
    if (__builtin_expect(!any_subnormal(first, second), 1)) {
      auto bits = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
      if constexpr (kOrder == Order::kAlternate) bits = alternate_halves(bits);
      store_register(reinterpret_cast<uint16_t*>(to), streaming, bits);
      return;
    }
#endif
    U a, b;
    __builtin_memcpy(&a, &first, sizeof a);
    __builtin_memcpy(&b, &second, sizeof b);
    auto bits = round_in_turn(a, b);
    if constexpr (kOrder == Order::kHalves) bits = even_then_odd(bits);
    store_register(reinterpret_cast<uint16_t*>(to), streaming, bits);
  }
}

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
