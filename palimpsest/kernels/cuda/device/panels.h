#pragma once

#include <cstdint>

/// How launches cut a tensor into blocks. A panel is one channel in NCHW and a few neighbouring channels in
/// channels-last. A segment is a share of a panel's values; one thread block works on one segment. All
/// numbers are fixed, because the order of additions, and so the last digit of a sum, must not depend on the
/// device.
namespace palimpsest::kernels::cuda {

/// Threads per block; of kernels that keep a panel in shared memory.
inline constexpr int kThreads = 256, kResidentThreads = 512;

/// Width of a panel in channels-last, in vectors of 16 bytes (kScalarPanel: in single values), and the most
/// bytes of a panel's row: a cache line, or its half for kernels that keep the panel in shared memory.
inline constexpr int kPanel = 8, kScalarPanel = 32;
inline constexpr int kPanelBytes = 16 * kPanel, kResidentPanelBytes = kPanelBytes / 2;

/// Returns the most vectors of `vector` values of S in the row of a panel: a power of two, at most a warp's
/// lanes.
template <class S>
constexpr int most_wide(int vector, int panel_bytes) {
  const int fit = panel_bytes / (vector * static_cast<int>(sizeof(S)));
  return vector == 1 || fit > kScalarPanel ? kScalarPanel : fit;
}

/// Returns how many vectors wide panels are if a pixel has `vectors` of them: of `most`, its half and so on
/// the first that leaves at most one lane idle for eight that work; if none does, the one that leaves the
/// fewest idle. Not less than `least`, for which memory reads as much as for fewer, unless the pixel has
/// fewer.
inline int panel_width(int64_t vectors, int most, int least) {
  const auto lanes = [&](int wide) { return (vectors + wide - 1) / wide * wide; };
  int best = most;
  for (int wide = most; wide >= 1 && (wide >= least || wide >= vectors); wide /= 2) {
    if (lanes(wide) < lanes(best)) best = wide;
    if (8 * (lanes(best) - vectors) <= vectors) break;
  }
  return best;
}

/// Width of a strip of small planes (strips.cuh) in vectors, and its channels, at most. Its coefficients lie
/// in shared memory once per value of a row.
inline constexpr int kMostStrip = 64, kMostStripChannels = 32;
/// Strips become wider where a plane would leave threads without work, up to this many bytes per strip and as
/// long as there remain so many strips.
inline constexpr int64_t kWideStripBytes = 64 * 1024, kLeastStrips = 256;

/// Blocks that a launch with sums aims at: several waves on the largest device, because the last wave is
/// never full. Columns: fewer, because the last block of a panel adds up its segments, many channels of each.
inline constexpr int64_t kReduceBlocks = 4096, kColumnReduceBlocks = 2048;
/// Segments per panel in channels-last. One block adds up 256 of them in 1 to 2 us.
inline constexpr int64_t kMostColumnSegments = 256;
/// The least vectors per thread, so that it has several loads under way.
inline constexpr int64_t kLeastVectors = 4;
/// Kernels count pieces of a panel, pixels and images in 32 bits, and step past the end by up to 2^16.
inline constexpr int64_t kMostPieces = (int64_t{1} << 31) - (1 << 16);
/// Panels of a launch with more than one segment per panel. With more panels there are enough blocks without.
inline constexpr int64_t kMostPanelsInSegments = kReduceBlocks / 2;

}  // namespace palimpsest::kernels::cuda
