#pragma once

#include <cstdint>

namespace palimpsest::kernels::cpu {

/// How a kernel writes. A streaming (non-temporal) store skips the read of the line that it replaces, which is
/// a quarter of the traffic of a backward sweep. It pays for outputs that would leave the caches before they
/// are read.
enum class Stores { kCached, kStreaming };

/// Larger results are written with streaming stores: with its inputs, a result of this size fills the cache
/// that a group of cores shares.
inline constexpr int64_t kCachedBytes = int64_t{16} << 20;

}  // namespace palimpsest::kernels::cpu
