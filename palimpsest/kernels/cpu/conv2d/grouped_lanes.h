#pragma once

// Only for units of one instruction set, as simd/vector.h. Spreads input i of the group over all lanes.

#include "palimpsest/kernels/cpu/simd/vector.h"

#include <cstdint>

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d {

using F32 = Vector<float>;
constexpr int kLanes = PALIMPSEST_VECTOR_BYTES / 4;

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr bool kManyRegisters = true;  // 32 of them, else 16
#else
constexpr bool kManyRegisters = false;
#endif

template <int kValue>
struct Int {
  constexpr operator int() const { return kValue; }
};

/// Calls body(Int<kBegin>{}), ..., body(Int<kEnd - 1>{}): a loop whose variable is a constant, so that arrays
/// that it indexes are registers.
template <int kBegin, int kEnd, class Body>
PALIMPSEST_HOST_DEVICE void unrolled(const Body& body) {
  if constexpr (kBegin < kEnd) {
    body(Int<kBegin>{});
    unrolled<kBegin + 1, kEnd>(body);
  }
}

/// Returns the same value in every lane, by one load: the addition in broadcast would take an arithmetic port
/// from the multiply-adds (a fifth of the time of groups of 16).
PALIMPSEST_HOST_DEVICE F32 broadcast_load(const float* from) {
  return *from - F32{};
}

/// Keeps v in a register until its last use. g++ would load it again for each multiply-add, and the cache
/// serves only two loads per cycle.
PALIMPSEST_HOST_DEVICE void keep_in_register(F32& v) {
#if defined(__x86_64__)
  if constexpr (kManyRegisters) asm("" : "+v"(v));
#endif
}

template <int... kLane>
struct LaneList {};
template <int kCount, int... kLane>
struct LanesUpTo : LanesUpTo<kCount - 1, kCount - 1, kLane...> {};
template <int... kLane>
struct LanesUpTo<0, kLane...> {
  using type = LaneList<kLane...>;
};

/// Returns whether a group fills whole vectors, so that all lanes have the same inputs.
template <int kGroup>
constexpr bool kFillsVectors = kGroup >= kLanes;

template <int kGroup, int kInput, int... kLane>
PALIMPSEST_HOST_DEVICE F32 spread(F32 x, LaneList<kLane...>) {
  return __builtin_shufflevector(x, x, (kLane / kGroup * kGroup + kInput)...);
}
/// Returns in every lane input kInput of the lane's own group; kGroup < kLanes.
template <int kGroup, int kInput>
PALIMPSEST_HOST_DEVICE F32 spread(F32 x) {
  return spread<kGroup, kInput>(x, typename LanesUpTo<kLanes>::type{});
}

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d
