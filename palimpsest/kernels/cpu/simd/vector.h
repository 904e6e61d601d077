#pragma once

// Only for units that are compiled once per instruction set. The build defines for each of them
//   PALIMPSEST_ISA_NAMESPACE   a namespace per set, so that no two sets share a symbol
//   PALIMPSEST_VECTOR_BYTES    the width of a vector register
// The names of cpu/simd lie in that namespace; an operator has a namespace within it, which sees them.

#include "palimpsest/base/host_device.h"

#include <cstdint>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {

/// Marks a lambda that must be inlined.
#define PALIMPSEST_INLINE_LAMBDA __attribute__((always_inline))

// The compiler's own vector types: arithmetic, comparison and `mask ? a : b` work lane by lane on any target.
// Plain loops under `omp simd` are slower: they sum into one register, wait for its latency, and leave tails
// of up to 15 values to scalar code (at 7x7 pixels every third value).
template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(PALIMPSEST_VECTOR_BYTES)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

template <class T>
struct Bits;
template <>
struct Bits<float> {
  using type = int32_t;
  using unsigned_type = uint32_t;
};
template <>
struct Bits<double> {
  using type = int64_t;
  using unsigned_type = uint64_t;
};

/// Lanes of V, which is a T (one lane) or a Vector<T>.
template <class T, class V>
constexpr int64_t lanes() {
  return sizeof(V) / sizeof(T);
}

template <class V, class T>
PALIMPSEST_HOST_DEVICE V load(const T* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));  // no alignment assumed
  return v;
}

template <class V, class T>
PALIMPSEST_HOST_DEVICE void store(T* to, V v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

/// Asks for the cache line of a value that will be read soon. The line comes into the second-level cache: on a
/// Zen 4, sweeps by columns that asked for it in the first level took twice the time.
PALIMPSEST_HOST_DEVICE void fetch_ahead(const void* value) {
  __builtin_prefetch(value, 0, 2);
}

/// A streaming store (see Stores). `to` must lie on a vector's boundary. End a sweep of such stores with
/// streaming_fence().
template <class V, class T>
PALIMPSEST_HOST_DEVICE void store_streaming(T* to, V v) {
#ifdef __AVX512F__
  if constexpr (sizeof(V) == 64) return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)v);
#endif
#ifdef __AVX2__
  if constexpr (sizeof(V) == 32) return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)v);
#endif
#ifdef __SSE2__
  if constexpr (sizeof(V) == 16) return _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)v);
#endif
  __builtin_memcpy(static_cast<void*>(to), &v, sizeof(V));
}

/// Makes streaming stores visible to other threads before all later stores.
PALIMPSEST_HOST_DEVICE void streaming_fence() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

/// Returns the same value in every lane.
template <class V, class T>
PALIMPSEST_HOST_DEVICE V broadcast(T value) {
  return value - V{};  // subtracting 0 changes no value, adding it changes -0
}

/// Returns max(v, 0), lane by lane. Keeps NaN, as libtorch's ReLU does.
template <class V>
PALIMPSEST_HOST_DEVICE V relu(V v) {
  return v <= V{} ? V{} : v;
}

// The next functions use intrinsics: from a comparison and a choice gcc makes two to four instructions.

/// Returns a > b ? a : b, lane by lane: b where one of them is a NaN.
template <class V>
PALIMPSEST_HOST_DEVICE V maximum(V a, V b) {
#ifdef __AVX512F__
  if constexpr (__is_same(V, Vector<float>) && sizeof(V) == 64)
    return (V)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX__)
  if constexpr (__is_same(V, Vector<float>) && sizeof(V) == 32) return (V)_mm256_max_ps((__m256)a, (__m256)b);
#endif
  return a > b ? a : b;
}

/// Returns a < b ? a : b, lane by lane: b where one of them is a NaN.
template <class V>
PALIMPSEST_HOST_DEVICE V minimum(V a, V b) {
#ifdef __AVX512F__
  if constexpr (__is_same(V, Vector<float>) && sizeof(V) == 64)
    return (V)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX__)
  if constexpr (__is_same(V, Vector<float>) && sizeof(V) == 32) return (V)_mm256_min_ps((__m256)a, (__m256)b);
#endif
  return a < b ? a : b;
}

/// Returns -|v|.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V minus_abs(V v) {
  using Int = typename Bits<T>::type;
  return (V)((Vector<Int>)v | (Int(1) << (8 * sizeof(T) - 1)));
}

/// Returns v where `keep` has all bits, 0 where it has none; for a NaN or an infinity too. Keep: one mask for all lanes,
/// or one per lane.
template <class T, class V, class Keep>
PALIMPSEST_HOST_DEVICE V keep_if(Keep keep, V v) {
  if constexpr (sizeof(V) == sizeof(T))
    return keep ? v : V{};
  else
    return (V)((Vector<typename Bits<T>::type>)v & keep);
}

/// Returns the mask for keep_if that clears the first `count` lanes of V, or keeps the only one.
template <class T, class V>
PALIMPSEST_HOST_DEVICE auto all_but_first(int64_t count) {
  using Lane = typename Bits<T>::type;
  if constexpr (sizeof(V) == sizeof(T)) {
    return Lane(-1);
  } else {
    Vector<Lane> lane;
    for (int64_t i = 0; i < lanes<T, V>(); ++i) lane[i] = static_cast<Lane>(i);
    return lane >= static_cast<Lane>(count);
  }
}

/// Returns keep_if(keep, v * factor).
template <class T, class V>
PALIMPSEST_HOST_DEVICE V product_if(typename Bits<T>::type keep, V v, T factor) {
#ifdef __AVX512F__
  if constexpr (__is_same(V, Vector<float>) && sizeof(V) == 64)
    return (V)_mm512_maskz_mul_ps(static_cast<__mmask16>(keep), (__m512)v, _mm512_set1_ps(factor));
#endif
  return keep_if<T>(keep, V(v * factor));
}

/// Returns v > 0 ? a : b, lane by lane.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V if_above_zero(V v, V a, V b) {
#ifdef __AVX512F__
  if constexpr (__is_same(V, Vector<float>) && sizeof(V) == 64) {
    // In this order gcc merges the choice with the product that b is.
    const __mmask16 is_b = _mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_NGT_UQ);
    return (V)_mm512_mask_blend_ps(is_b, (__m512)a, (__m512)b);
  }
#endif
#if defined(__AVX__) && !defined(__AVX512F__)
  if constexpr (__is_same(V, Vector<float>) && sizeof(V) == 32) {
    const __m256 is_a = _mm256_cmp_ps((__m256)v, _mm256_setzero_ps(), _CMP_GT_OQ);
    return (V)_mm256_blendv_ps((__m256)b, (__m256)a, is_a);
  }
#endif
  return v > T(0) ? a : b;
}

/// Returns v > 0 ? a : a * factor, lane by lane.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V times_unless_above_zero(V v, V a, T factor) {
  return if_above_zero<T>(v, a, V(a * factor));
}

/// Returns the values of two vectors of float in turn, of their first halves or of their second ones (kHalf).
template <int kHalf, class V>
PALIMPSEST_HOST_DEVICE V interleave(V a, V b) {
  constexpr int64_t kCount = lanes<float, V>();
  constexpr int kFirst = kHalf * kCount / 2;
  if constexpr (kCount == 16)
    return __builtin_shufflevector(a, b, kFirst, kFirst + 16, kFirst + 1, kFirst + 17, kFirst + 2,
                                   kFirst + 18, kFirst + 3, kFirst + 19, kFirst + 4, kFirst + 20, kFirst + 5,
                                   kFirst + 21, kFirst + 6, kFirst + 22, kFirst + 7, kFirst + 23);
  else if constexpr (kCount == 8)
    return __builtin_shufflevector(a, b, kFirst, kFirst + 8, kFirst + 1, kFirst + 9, kFirst + 2, kFirst + 10,
                                   kFirst + 3, kFirst + 11);
  else
    return __builtin_shufflevector(a, b, kFirst, kFirst + 4, kFirst + 1, kFirst + 5);
}

/// The inverse: returns v or w (kParity) from a = interleave<0>(v, w) and b = interleave<1>(v, w).
template <int kParity, class V>
PALIMPSEST_HOST_DEVICE V every_other(V a, V b) {
  constexpr int64_t kCount = lanes<float, V>();
  constexpr int k = kParity;
  if constexpr (kCount == 16)
    return __builtin_shufflevector(a, b, k, k + 2, k + 4, k + 6, k + 8, k + 10, k + 12, k + 14, k + 16,
                                   k + 18, k + 20, k + 22, k + 24, k + 26, k + 28, k + 30);
  else if constexpr (kCount == 8)
    return __builtin_shufflevector(a, b, k, k + 2, k + 4, k + 6, k + 8, k + 10, k + 12, k + 14);
  else
    return __builtin_shufflevector(a, b, k, k + 2, k + 4, k + 6);
}

/// Returns the square root, correctly rounded.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V square_root(V v) {
  constexpr bool kFloat = sizeof(T) == sizeof(float);
#ifdef __AVX512F__
  if constexpr (sizeof(V) == 64)
    return kFloat ? (V)_mm512_maskz_sqrt_ps(0xffff, (__m512)v) : (V)_mm512_maskz_sqrt_pd(0xff, (__m512d)v);
#endif
#ifdef __AVX__
  if constexpr (sizeof(V) == 32) return kFloat ? (V)_mm256_sqrt_ps((__m256)v) : (V)_mm256_sqrt_pd((__m256d)v);
#endif
#ifdef __SSE2__
  if constexpr (sizeof(V) == 16) return kFloat ? (V)_mm_sqrt_ps((__m128)v) : (V)_mm_sqrt_pd((__m128d)v);
#endif
  for (int64_t i = 0; i < lanes<T, V>(); ++i) v[i] = kFloat ? __builtin_sqrtf(v[i]) : __builtin_sqrt(v[i]);
  return v;
}

/// Returns the sum over lanes, in double.
template <class T, class V>
PALIMPSEST_HOST_DEVICE double sum(V v) {
  if constexpr (sizeof(V) == sizeof(T)) {
    return v;
  } else {
    double total = 0;
    for (int64_t i = 0; i < lanes<T, V>(); ++i) total += static_cast<double>(v[i]);
    return total;
  }
}

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
