#pragma once

#include <cstdint>

namespace palimpsest {

/// The memory format of a contiguous (N, C, S) tensor.
enum class Layout {
  kNCHW,          ///< element (n, c, s) at (n * C + c) * S + s
  kChannelsLast,  ///< element (n, c, s) at (n * S + s) * C + c
};

/// The shape of a tensor as the kernels see it: n images, c channels, s spatial positions per image and
/// channel (H * W for images, 1 for a matrix).
struct Shape3 {
  int64_t n = 0;
  int64_t c = 0;
  int64_t s = 0;

  /// Returns the number of values per channel, over which its statistics are computed.
  constexpr int64_t per_channel() const { return n * s; }
  constexpr int64_t elements() const { return n * c * s; }
};

/// Returns a / b rounded up, for a >= 0 and b > 0.
constexpr int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Return `value` rounded to a multiple of `unit`, for value >= 0 and unit > 0.
constexpr int64_t round_up(int64_t value, int64_t unit) {
  return ceil_divide(value, unit) * unit;
}
constexpr int64_t round_down(int64_t value, int64_t unit) {
  return value / unit * unit;
}

/// One number per spatial dimension: height, width.
struct Pair2 {
  int64_t h = 1;
  int64_t w = 1;
};

}  // namespace palimpsest
