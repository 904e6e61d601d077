#pragma once

// Only for units of one instruction set, as simd/vector.h. How max pooling reads, compares and adds each
// storage type, one vector at a time.

#include "palimpsest/kernels/cpu/simd/vector.h"

#include <cstdint>

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::max_pool {

/// Vectors of `lanes` values of T, however wide.
template <class T, int64_t kLanes>
struct VectorOfLanes {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <class T, int64_t kLanes>
using Lanes = typename VectorOfLanes<T, kLanes>::type;

template <class To, class From>
PALIMPSEST_HOST_DEVICE To reinterpret(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

/// Returns the first `count` lanes of a vector. Whole vectors, which are nearly all, take one instruction.
template <class V, class T>
PALIMPSEST_HOST_DEVICE V load_some(const T* from, int64_t count) {
  if (count * static_cast<int64_t>(sizeof(T)) == sizeof(V)) return load<V>(from);
  V v{};
  __builtin_memcpy(&v, from, static_cast<unsigned long>(count) * sizeof(T));
  return v;
}
template <class V, class T>
PALIMPSEST_HOST_DEVICE void store_some(T* to, V v, int64_t count) {
  if (count * static_cast<int64_t>(sizeof(T)) == sizeof(V))
    store(to, v);
  else
    __builtin_memcpy(to, &v, static_cast<unsigned long>(count) * sizeof(T));
}

// Converts in steps: g++ 12 converts between integers by one instruction if the width doubles or halves, but
// lane by lane if it changes more, which would take 3 times the time of a whole backward pass.
template <int kBytes>
struct UnsignedOf;
template <>
struct UnsignedOf<2> {
  using type = uint16_t;
};
template <>
struct UnsignedOf<4> {
  using type = uint32_t;
};

/// Returns bytes as integers of `kBytes` bytes.
template <int kBytes, int64_t kLanes>
PALIMPSEST_HOST_DEVICE auto widened(Lanes<uint8_t, kLanes> bytes) {
  if constexpr (kBytes == 2) {
    return __builtin_convertvector(bytes, Lanes<int16_t, kLanes>);
  } else if constexpr (kBytes == 4) {
    const auto half = __builtin_convertvector(bytes, Lanes<uint16_t, kLanes>);
    return __builtin_convertvector(half, Lanes<int32_t, kLanes>);
  } else {
    return __builtin_convertvector(widened<4, kLanes>(bytes), Lanes<int64_t, kLanes>);
  }
}

/// Returns integers below 256, of `kBytes` bytes, as bytes.
template <int kBytes, int64_t kLanes, class V>
PALIMPSEST_HOST_DEVICE Lanes<uint8_t, kLanes> narrowed(V wide) {
  if constexpr (kBytes == 2) {
    return __builtin_convertvector(wide, Lanes<uint8_t, kLanes>);
  } else {
    using Half = typename UnsignedOf<kBytes / 2>::type;
    return narrowed<kBytes / 2, kLanes>(__builtin_convertvector(wide, Lanes<Half, kLanes>));
  }
}

// Each storage type has
//   T                 the stored type of a value
//   kLanes            values per step of a sweep: one register
//   Position, Index   an integer as wide as a value, and a vector of them, as comparisons return
//   Best              the largest value so far and its position; offer() takes a value that is larger, or NaN
//   Sum               the type in which gradients are added
//   Sums, Part        a register of sums, and as many stored values; sum() and rounded() convert between them

template <class Float, class Int>
struct FloatStorage {
  using T = Float;
  using Sum = Float;
  using Position = Int;
  static constexpr int64_t kLanes = PALIMPSEST_VECTOR_BYTES / sizeof(Float);
  using V = Lanes<Float, kLanes>;
  using Index = Lanes<Int, kLanes>;
  static constexpr Float kLowest = -__builtin_inf();

  struct Best {
    V value = V{} + kLowest;
    Index position;

    PALIMPSEST_HOST_DEVICE explicit Best(Index first) : position(first) {}
    PALIMPSEST_HOST_DEVICE void offer(V v, Int at) {
      const Index takes = (v > value) | (v != v);
      value = takes ? v : value;
      position = takes ? Index{} + at : position;
    }
  };

  static constexpr int64_t kSumLanes = kLanes;
  using Part = V;
  using PartIndex = Index;
  using Sums = V;
  PALIMPSEST_HOST_DEVICE static Sums sum(Part v) { return v; }
  PALIMPSEST_HOST_DEVICE static Part rounded(Sums v) { return v; }
};

/// 16-bit values are compared as integers of their own width, twice as many per step as after widening: sign
/// and magnitude become a two's complement, in which both zeros are 0 and every NaN is the largest value.
template <class Format>
struct HalfStorage {
  using T = int16_t;
  using Sum = float;
  using Position = int16_t;
  static constexpr int64_t kLanes = PALIMPSEST_VECTOR_BYTES / sizeof(T);
  using V = Lanes<int16_t, kLanes>;
  using Index = V;
  static constexpr int16_t kNaN = 0x7fff;
  static constexpr auto kLowest = static_cast<int16_t>(Format::kInfinity - 0x8000);

  PALIMPSEST_HOST_DEVICE static V key(V bits) {
    const V sign = bits >> 15, magnitude = bits & kNaN;
    return magnitude > Format::kInfinity ? V{} + kNaN : (magnitude ^ sign) - sign;
  }

  struct Best {
    V value = V{} + kLowest, largest = V{} - Format::kInfinity;
    Index position;

    PALIMPSEST_HOST_DEVICE explicit Best(Index first) : position(first) {}
    PALIMPSEST_HOST_DEVICE void offer(V v, int16_t at) {
      const V k = key(v);
      const Index takes = (k > largest) | (k == kNaN);
      value = takes ? v : value;
      largest = takes ? k : largest;
      position = takes ? Index{} + at : position;
    }
  };

  static constexpr int64_t kSumLanes = PALIMPSEST_VECTOR_BYTES / sizeof(float);
  using Part = Lanes<int16_t, kSumLanes>;  // half a register
  using PartIndex = Part;
  using Sums = Lanes<float, kSumLanes>;
  using Wide = Lanes<uint32_t, kSumLanes>;
  using Narrow = Lanes<uint16_t, kSumLanes>;
  PALIMPSEST_HOST_DEVICE static Sums sum(Part v) {
    return reinterpret<Sums>(Format::widen(__builtin_convertvector(reinterpret<Narrow>(v), Wide)));
  }
  PALIMPSEST_HOST_DEVICE static Part rounded(Sums v) {
    return reinterpret<Part>(__builtin_convertvector(Format::narrow(reinterpret<Wide>(v)), Narrow));
  }
};

// 16-bit formats: `widen` returns the bits of the same number in f32, `narrow` rounds the bits of an f32 to
// the nearest, ties to even.

/// bfloat16: the upper half of an f32.
struct BFloat16Format {
  static constexpr int16_t kInfinity = 0x7f80;
  static constexpr uint32_t kQuietNaN = 0x7fc0;

  template <class Wide>
  PALIMPSEST_HOST_DEVICE static Wide widen(Wide bits) {
    return bits << 16;
  }
  template <class Wide>
  PALIMPSEST_HOST_DEVICE static Wide narrow(Wide f32) {
    const Wide rounded = (f32 + (0x7fff + (f32 >> 16 & 1))) >> 16;
    return (f32 & 0x7fffffff) > Wide{} + 0x7f800000 ? (f32 >> 16) | kQuietNaN : rounded;
  }
};

/// IEEE binary16. The conversions are those of Giesen, "Half to float done quick" and its sequel (2012): they
/// change the exponent, and f32 arithmetic handles the subnormal numbers.
struct Float16Format {
  static constexpr int16_t kInfinity = 0x7c00;

  template <class Wide>
  PALIMPSEST_HOST_DEVICE static Wide widen(Wide bits) {
    using Floats = Lanes<float, sizeof(Wide) / 4>;
    const Wide magnitude = (bits & 0x7fff) << 13;
    // 2^-14 and a subnormal number in its last places: no operand is a subnormal f32, which may count as 0.
    const Wide subnormal = reinterpret<Wide>(reinterpret<Floats>(magnitude + 0x38800000) - 0x1p-14f);
    const Wide scaled = magnitude < Wide{} + 0x00800000 ? subnormal : magnitude + 0x38000000;
    const Wide exponent = magnitude >= Wide{} + 0x0f800000 ? Wide{} + 0x7f800000 : Wide{};
    return scaled | exponent | ((bits & 0x8000) << 16);
  }
  template <class Wide>
  PALIMPSEST_HOST_DEVICE static Wide narrow(Wide f32) {
    using Floats = Lanes<float, sizeof(Wide) / 4>;
    const Wide magnitude = f32 & 0x7fffffff;
    // Adding 0.5 moves the last place of a subnormal number to the last place of the f32.
    const Wide subnormal = reinterpret<Wide>(reinterpret<Floats>(magnitude) + 0.5f) - 0x3f000000;
    const Wide normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    Wide result = magnitude < Wide{} + 0x38800000 ? subnormal : normal;
    result = magnitude >= Wide{} + 0x47800000 ? Wide{} + 0x7c00 : result;
    result = magnitude > Wide{} + 0x7f800000 ? Wide{} + 0x7e00 : result;
    return result | ((f32 & 0x80000000) >> 16);
  }
};

using F32Storage = FloatStorage<float, int32_t>;
using F64Storage = FloatStorage<double, int64_t>;
using F16Storage = HalfStorage<Float16Format>;
using BF16Storage = HalfStorage<BFloat16Format>;

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::max_pool
