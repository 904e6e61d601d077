#pragma once

#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace palimpsest::testing {

/// The distance between neighbouring values of `dtype` at `value`, away from 0.
inline double unit_in_last_place(DType dtype, double value) {
  const auto [digits, least_exponent] = dtype == DType::bf16  ? std::pair(7, -126)
                                        : dtype == DType::f16 ? std::pair(10, -14)
                                        : dtype == DType::f32 ? std::pair(23, -126)
                                                              : std::pair(52, -1022);
  const int exponent = value == 0 ? least_exponent : std::ilogb(value);
  return std::ldexp(1.0, std::max(exponent, least_exponent) - digits);
}

/// |got - want|_2 / |want|_2, in f64; |got|_2 where `want` is all zero.
template <class Got, class Want>
double relative_error(std::span<const Got> got, std::span<const Want> want) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    error += difference * difference;
    size += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::sqrt(size > 0 ? error / size : error);
}

/// Passes if `got` lies within `limit` of `want`. A failure names the worst element, got, want, its error as
/// a share of the limit, the error of the whole tensor, and the seed of the data.
template <class Got, class Want>
::testing::AssertionResult close(std::span<const Got> got, std::span<const Want> want, Tolerance limit,
                                 uint64_t seed) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure() << "got " << got.size() << " values, want " << want.size();
  double squares = 0;
  for (const Want& value : want) squares += static_cast<double>(value) * static_cast<double>(value);
  const double rms = std::sqrt(squares / static_cast<double>(want.empty() ? 1 : want.size()));
  double worst = 0;
  std::size_t worst_index = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    const double allowed = limit.element * (std::abs(static_cast<double>(want[i])) + rms);
    const double share = error == 0 ? 0 : error / allowed;
    if (!(share <= worst)) {  // a NaN counts as the worst
      worst = std::isnan(share) ? HUGE_VAL : share;
      worst_index = i;
    }
  }
  const double whole = relative_error(got, want);
  if (worst <= 1 && whole <= limit.relative_l2) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "element " << worst_index << ": got " << static_cast<double>(got[worst_index]) << ", want "
         << static_cast<double>(want[worst_index]) << ", error " << 100 * worst
         << " % of the limit; whole tensor: relative error " << whole << ", limit " << limit.relative_l2
         << "; seed " << seed;
}

/// Passes if both hold the same bytes; a failure names the first difference.
template <class T>
::testing::AssertionResult same_bytes(std::span<const T> got, std::span<const T> want) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure() << "got " << got.size() << " values, want " << want.size();
  if (want.empty() || std::memcmp(got.data(), want.data(), got.size_bytes()) == 0)
    return ::testing::AssertionSuccess();
  for (std::size_t i = 0; i < want.size(); ++i)
    if (std::memcmp(&got[i], &want[i], sizeof(T)) != 0)
      return ::testing::AssertionFailure() << "element " << i << ": got " << static_cast<double>(got[i])
                                           << ", want " << static_cast<double>(want[i]);
  return ::testing::AssertionSuccess();
}

}  // namespace palimpsest::testing
