#pragma once

#include "palimpsest/base/host_device.h"
#include "palimpsest/kernels/cpu/simd/block.h"

#include <cstdint>

namespace palimpsest::kernels::cpu {

/// What a product prefetches, a place per step: row_steps places of a row, `step` bytes apart, then those of the next
/// row. See Prefetch.
struct ReadAhead {
  const void* from;
  int64_t step;
  int64_t row_steps = kAllSteps;
  int64_t row_bytes = 0;  ///< between the starts of two rows

  static constexpr int64_t kAllSteps = int64_t{1} << 62;  ///< one row
};

/// Memory that will be read soon. The products that run before prefetch it in equal shares: one that asked for a new
/// cache line in each step would ask for more than memory provides, and wait.
class Prefetch {
 public:
  /// Nothing.
  PALIMPSEST_HOST_DEVICE constexpr Prefetch() {}

  /// `bytes` bytes that follow each other; each of the products has `steps` steps. All numbers are positive.
  PALIMPSEST_HOST_DEVICE static Prefetch of_bytes(const void* from, int64_t bytes, int64_t products,
                                                  int64_t steps) {
    const int64_t step = step_of(bytes, products * steps);
    return Prefetch(from, bytes, steps * step, {nullptr, step});
  }

  /// Rows of `size` bytes, which begin `row_bytes` apart. A product takes whole rows, if it has the steps: one line of
  /// each row would lie on as many pages.
  PALIMPSEST_HOST_DEVICE static Prefetch of_rows(const void* from, int64_t rows, int64_t size,
                                                 int64_t row_bytes, int64_t products, int64_t steps) {
    const int64_t each = (rows + products - 1) / products, row_steps = steps < each ? 1 : steps / each;
    return Prefetch(from, rows * row_bytes, each * row_bytes,
                    {nullptr, step_of(size, row_steps), row_steps, row_bytes});
  }

  /// Returns the share of the next product; `nothing`, memory that is in the cache, if none is left.
  PALIMPSEST_HOST_DEVICE ReadAhead next(const void* nothing) {
    if (at_ >= end_) return {nothing, 0};
    ReadAhead share = share_;
    share.from = at_;
    at_ += share_bytes_;
    return share;
  }

 private:
  PALIMPSEST_HOST_DEVICE Prefetch(const void* from, int64_t bytes, int64_t share_bytes,
                                  const ReadAhead& share)
      : at_(static_cast<const char*>(from)), end_(at_ + bytes), share_bytes_(share_bytes), share_(share) {}

  /// Returns the bytes from the place of one step to that of the next. No line is left out if there are as many steps as
  /// lines.
  PALIMPSEST_HOST_DEVICE static int64_t step_of(int64_t bytes, int64_t steps) {
    const int64_t each = (bytes + steps - 1) / steps;
    return each < kLineBytes ? each : kLineBytes;
  }

  const char *at_ = nullptr, *end_ = nullptr;
  int64_t share_bytes_ = 0;
  ReadAhead share_{};
};

}  // namespace palimpsest::kernels::cpu
