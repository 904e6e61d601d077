#pragma once

// Only for units of one instruction set, as simd/vector.h. The bits of activations with two branches
// (kernels/formulas/branch_inverse.h): one per element, in the order of the elements in memory.

#include "palimpsest/kernels/cpu/simd/vector.h"

#include <cstdint>

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn {

/// Returns the lanes of a comparison's result as bits, lane 0 in the lowest bit.
template <class T, class Mask>
PALIMPSEST_HOST_DEVICE uint32_t lane_bits(Mask mask) {
  if constexpr (sizeof(Mask) < 16) {
    return mask ? 1 : 0;
  } else {
    constexpr bool kFloat = sizeof(T) == sizeof(float);
#ifdef __AVX512DQ__
    if constexpr (sizeof(Mask) == 64)
      return kFloat ? static_cast<uint32_t>(_mm512_movepi32_mask((__m512i)mask))
                    : static_cast<uint32_t>(_mm512_movepi64_mask((__m512i)mask));
#endif
#ifdef __AVX__
    if constexpr (sizeof(Mask) == 32)
      return static_cast<uint32_t>(kFloat ? _mm256_movemask_ps((__m256)mask)
                                          : _mm256_movemask_pd((__m256d)mask));
#endif
#ifdef __SSE2__
    if constexpr (sizeof(Mask) == 16)
      return static_cast<uint32_t>(kFloat ? _mm_movemask_ps((__m128)mask) : _mm_movemask_pd((__m128d)mask));
#endif
    uint32_t bits = 0;
    for (uint32_t i = 0; i < sizeof(Mask) / sizeof(T); ++i) bits |= (mask[i] ? 1u : 0u) << i;
    return bits;
  }
}

/// Returns the bits from number `first` on, one per lane of V, as a condition for `? :`. Reads 4 bytes.
template <class T, class V>
PALIMPSEST_HOST_DEVICE auto lanes_from_bits(const uint8_t* bytes, int64_t first) {
  uint32_t word;
  __builtin_memcpy(&word, bytes + first / 8, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = __builtin_bswap32(word);
#endif
  word >>= first % 8;
  if constexpr (sizeof(V) == sizeof(T)) {
    return (word & 1u) != 0;
  } else {
    using Lane = typename Bits<T>::type;
    Vector<Lane> own{};  // the bit of each lane
    for (int64_t i = 0; i < lanes<T, V>(); ++i) own[i] = Lane{1} << i;
    return (own & static_cast<Lane>(word)) != 0;
  }
}

/// Writes a run of bits. Another thread may write the neighbouring runs, which may share this run's first and
/// last byte: bits of those two are set atomically, and must be 0 before.
class BitWriter {
 public:
  PALIMPSEST_HOST_DEVICE BitWriter(uint8_t* bytes, int64_t first)
      : to_(bytes + first / 8), count_(static_cast<uint32_t>(first % 8)), shared_(count_ > 0) {}

  /// Appends `count` bits, at most 32; higher bits must be 0.
  PALIMPSEST_HOST_DEVICE void append(uint32_t bits, uint32_t count) {
    pending_ |= static_cast<uint64_t>(bits) << count_;
    for (count_ += count; count_ >= 8; count_ -= 8) {
      const auto byte = static_cast<uint8_t>(pending_);
      if (shared_)
        set(byte);
      else
        *to_ = byte;
      shared_ = false;
      ++to_;
      pending_ >>= 8;
    }
  }
  PALIMPSEST_HOST_DEVICE void finish() {
    if (count_ > 0) set(static_cast<uint8_t>(pending_));
  }

 private:
  PALIMPSEST_HOST_DEVICE void set(uint8_t byte) const { __atomic_fetch_or(to_, byte, __ATOMIC_RELAXED); }

  uint8_t* to_;
  uint64_t pending_ = 0;
  uint32_t count_;
  bool shared_;
};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn
