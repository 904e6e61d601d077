#pragma once

#include <cstdint>

namespace palimpsest {

/// How a dense (N, C, S) tensor lies in memory.
enum class Layout {
  kNCHW,          ///< element (n, c, s) at (n * C + c) * S + s
  kChannelsLast,  ///< element (n, c, s) at (n * S + s) * C + c
};

/// A tensor as the kernels see it: N images, C channels, S = all spatial positions (1 for a matrix).
struct Shape3 {
  int64_t n = 0;
  int64_t c = 0;
  int64_t s = 0;

  constexpr int64_t per_channel() const {
    return n * s;
  }  ///< m: values that one channel's statistics are taken over
  constexpr int64_t elements() const { return n * c * s; }
};

/// a / b rounded up; a >= 0, b > 0.
constexpr int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// A pair for the two spatial dimensions: height before width.
struct Pair2 {
  int64_t h = 1;
  int64_t w = 1;
};

}  // namespace palimpsest
