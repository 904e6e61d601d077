#pragma once

#include "palimpsest/kernels/cuda/device/platform.cuh"

#include <bit>
#include <cstdint>

namespace palimpsest::kernels::cuda {

/// Divides numbers from 0 to the largest N by one that is known at run time, at least 1. N is int32_t or
/// int64_t.
template <class N>
class Divisor;

/// Three instructions per division, where the processor would take 20: a product and a shift.
template <>
class Divisor<int32_t> {
 public:
  Divisor() = default;
  // With 2^(shift-1) < d <= 2^shift, n / d = (n * m) / 2^(32+shift) for m = floor(2^(32+shift) / d) + 1,
  // which has 33 bits: the highest of them is added as n (Granlund, Montgomery, "Division by Invariant
  // Integers using Multiplication"). The sum has 32 bits, because n has 31.
  explicit Divisor(int32_t divisor)
      : divisor_(divisor), shift_(static_cast<uint32_t>(std::bit_width(static_cast<uint32_t>(divisor - 1)))) {
    const auto d = static_cast<uint64_t>(divisor);
    factor_ = static_cast<uint32_t>((((uint64_t{1} << shift_) - d) << 32) / d + 1);
  }

  __device__ __forceinline__ int32_t divide(int32_t number) const {
    const auto n = static_cast<uint32_t>(number);
    const auto high = static_cast<uint32_t>(uint64_t{n} * factor_ >> 32);
    return static_cast<int32_t>((high + n) >> shift_);
  }
  /// Returns the remainder, and replaces `number` by the quotient.
  __device__ __forceinline__ int32_t take_remainder(int32_t& number) const {
    const int32_t quotient = divide(number), remainder = number - quotient * divisor_;
    number = quotient;
    return remainder;
  }

 private:
  int32_t divisor_ = 1;
  uint32_t factor_ = 1, shift_ = 0;
};

template <>
class Divisor<int64_t> {
 public:
  Divisor() = default;
  explicit Divisor(int64_t divisor) : divisor_(divisor) {}

  __device__ __forceinline__ int64_t divide(int64_t number) const { return number / divisor_; }
  __device__ __forceinline__ int64_t take_remainder(int64_t& number) const {
    const int64_t remainder = number % divisor_;
    number /= divisor_;
    return remainder;
  }

 private:
  int64_t divisor_ = 1;
};

}  // namespace palimpsest::kernels::cuda
