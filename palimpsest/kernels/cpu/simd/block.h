#pragma once

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
  int64_t next = 0;   ///< offset, from this block, of the block that its sums prefetch; 0: none
};

/// Bytes of a cache line. Arrays on the stack are aligned to it: a vector across two lines costs two accesses.
inline constexpr int64_t kLineBytes = 64;

/// The widest block with sums per column: the sums live on the stack, in the first-level cache.
inline constexpr int64_t kMaxColumns = 2048;

}  // namespace palimpsest::kernels::cpu
