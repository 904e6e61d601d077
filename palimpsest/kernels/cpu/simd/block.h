#pragma once

#include "palimpsest/base/host_device.h"
#include "palimpsest/kernels/cpu/simd/stores.h"

#include <cstdint>

namespace palimpsest::kernels::cpu {

/// The part of a tensor that one sweep visits: `rows` runs of `width` contiguous values, `stride` values
/// apart.
struct Block {
  int64_t rows = 0;
  int64_t stride = 0;
  int64_t width = 0;
  int64_t plane = 0;  ///< neighbouring columns that belong to one channel, if a row holds several such planes
  int64_t next = 0;   ///< offset, from this block, of the block to prefetch; 0: none
};

/// Bytes of a cache line. Arrays on the stack are aligned to it: a vector across two lines costs two accesses.
inline constexpr int64_t kLineBytes = 64;

/// The widest block of columns or of a strip: sums and arguments per column are on the stack, in the first-level cache.
inline constexpr int64_t kMaxColumns = 2048;

/// Rows that a sum by columns takes at a time: its sums are loaded and stored so much less often.
template <class S>
inline constexpr int64_t kRowsTogether = sizeof(S) == 2 ? 8 : 4;

/// The most rows that a column adds up in the accumulate type before its sum continues in double.
inline constexpr int64_t kColumnRun = 144;

/// Rows of the parts in which a block of so many rows is summed by columns. They have about as many rows each, and all
/// but the last a multiple of kRowsTogether: each part costs as much as a few rows, and so does a row that is alone
/// (sum_columns).
template <class S>
PALIMPSEST_HOST_DEVICE constexpr int64_t rows_per_sum(int64_t rows) {
  static_assert(kColumnRun % kRowsTogether<S> == 0, "rounding up would exceed kColumnRun");
  const int64_t parts = (rows + kColumnRun - 1) / kColumnRun;
  return parts > 0 ? ((rows + parts - 1) / parts + kRowsTogether<S> - 1) / kRowsTogether<S> * kRowsTogether<S>
                   : 1;
}

}  // namespace palimpsest::kernels::cpu
