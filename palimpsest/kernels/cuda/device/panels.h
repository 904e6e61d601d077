#pragma once

#include <cstdint>

/// How launches cut a tensor into blocks. A panel is one channel in NCHW and a few neighbouring channels in
/// channels-last. A segment is a share of a panel's values; one thread block works on one segment. All
/// numbers are fixed, because the order of additions, and so the last digit of a sum, must not depend on the
/// device.
namespace palimpsest::kernels::cuda {

/// Threads per block; of kernels that keep a panel in shared memory.
inline constexpr int kThreads = 256, kResidentThreads = 512;

/// Width of a panel in channels-last, in vectors of 16 bytes (kScalarPanel: in single values). Kernels that
/// sum have narrow panels, so that many blocks share the work of adding up segments, and so that a resident
/// panel is small. Other kernels take whole cache lines of 128 bytes.
inline constexpr int kReducePanel = 4, kApplyPanel = 8, kScalarPanel = 32;

/// Blocks that a launch aims at: several waves on the largest device, because the last wave is never full.
inline constexpr int64_t kReduceBlocks = 4096, kColumnReduceBlocks = 2048;
/// Segments per panel in channels-last. One block adds up 256 of them in 1 to 2 us.
inline constexpr int64_t kMostColumnSegments = 256;
/// The least vectors per thread, so that it has several loads under way.
inline constexpr int64_t kLeastVectors = 4;
/// Kernels count pieces of a panel, pixels and images in 32 bits, and step past the end by some thousands.
inline constexpr int64_t kMostPieces = (int64_t{1} << 31) - (1 << 16);
/// Panels of a launch with more than one segment per panel. With more panels there are enough blocks without.
inline constexpr int64_t kMostPanelsInSegments = kReduceBlocks / 2;

}  // namespace palimpsest::kernels::cuda
