#pragma once

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/cpu/conv2d/matrix_kernels.h"
#include "palimpsest/kernels/cpu/simd/block.h"

#include <algorithm>
#include <cstdint>

namespace palimpsest::kernels::cpu::conv2d {

/// Memory that will be read soon. The products that run before prefetch it in equal shares: one that asked for a new
/// cache line in each step would ask for more than memory provides, and wait.
class Prefetch {
 public:
  /// Nothing.
  Prefetch() = default;

  /// `bytes` bytes that follow each other; each of the products has `steps` steps.
  static Prefetch of_bytes(const void* from, int64_t bytes, int64_t products, int64_t steps) {
    const int64_t step = step_of(bytes, products * steps);
    return Prefetch(from, bytes, steps * step, {nullptr, step});
  }

  /// Rows of `size` bytes, which begin `row_bytes` apart. A product takes whole rows, if it has the steps: one line of
  /// each row would lie on as many pages.
  static Prefetch of_rows(const void* from, int64_t rows, int64_t size, int64_t row_bytes, int64_t products,
                          int64_t steps) {
    const int64_t each = ceil_divide(rows, products), row_steps = std::max<int64_t>(1, steps / each);
    return Prefetch(from, rows * row_bytes, each * row_bytes,
                    {nullptr, step_of(size, row_steps), row_steps, row_bytes});
  }

  /// Returns the share of the next product; `nothing`, memory that is in the cache, if none is left.
  ReadAhead next(const void* nothing) {
    if (at_ >= end_) return {nothing, 0};
    ReadAhead share = share_;
    share.from = at_;
    at_ += share_bytes_;
    return share;
  }

 private:
  Prefetch(const void* from, int64_t bytes, int64_t share_bytes, const ReadAhead& share)
      : at_(static_cast<const char*>(from)), end_(at_ + bytes), share_bytes_(share_bytes), share_(share) {}

  /// Returns the bytes from the place of one step to that of the next. No line is left out if the lines are no more than
  /// the steps.
  static int64_t step_of(int64_t bytes, int64_t steps) {
    return std::min(kLineBytes, ceil_divide(bytes, steps));
  }

  const char *at_ = nullptr, *end_ = nullptr;
  int64_t share_bytes_ = 0;
  ReadAhead share_{};
};

}  // namespace palimpsest::kernels::cpu::conv2d
