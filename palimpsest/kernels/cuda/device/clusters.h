#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

/// How many blocks share a panel in a launch that keeps each panel in shared memory (a resident launch), or
/// whether two launches without it take less time. Plain arithmetic on what the device says, so that tests
/// need no device.
namespace palimpsest::kernels::cuda {

struct ResidentWork {
  int64_t panels = 0;     ///< one cluster of blocks each
  int64_t bytes = 0;      ///< of one tensor
  int passes = 2;         ///< tensors that the resident launch reads and writes
  int passes_of_two = 3;  ///< those of the two launches together
  int64_t room = 0;       ///< shared memory that a block can use
  int multiprocessors = 1;
  int max_cluster = 1;  ///< blocks; a power of two
};

/// More blocks per panel, though one would do, are for panels of which a block holds more than this.
inline constexpr int64_t kSmallShare = 16 * 1024;
/// What a device moves in the 2 to 3 us that a second launch costs.
inline constexpr double kBytesOfALaunch = 8e6;
/// A device is not asked to do without its usual cluster for less.
inline constexpr double kWorthAnotherCluster = 1.1;
/// Measured on an H100: the time of a resident launch, whose blocks all wait between reading and writing,
/// over that of launches which move as many bytes without a wait. With full waves.
inline constexpr double kResidentOverhead = 1.35;

/// Returns the blocks per panel, a power of two up to max_cluster, or 0: make two launches.
///   share(blocks)   bytes of shared memory per block if so many share a panel
///   active(blocks)  clusters of so many blocks that the device runs at once; 0: it refuses them
///
/// The usual choice needs few blocks per panel, but nearly two blocks per multiprocessor (256 for 132,
/// because a second wave of as many takes longer than it gains). It holds if all clusters run at once.
/// Otherwise clusters are left for a second wave, in which most of the device idles: a GPC of 14 instead of
/// 16 multiprocessors has room for 3 clusters of 8 in place of 4, and a MIG slice may have none. Then the
/// time of each choice is compared, in passes over a tensor. A wave takes the time of a full one, and of one
/// block per multiprocessor at least.
template <class Share, class Active>
int blocks_per_panel(const ResidentWork& work, const Share& share, const Active& active) {
  const auto fits = [&](int blocks) { return blocks <= work.max_cluster && share(blocks) <= work.room; };
  int usual = 1;
  while (!fits(usual) && 2 * usual <= work.max_cluster) usual *= 2;
  while (8 * work.panels * usual < 15 * int64_t{work.multiprocessors} && share(usual) > kSmallShare &&
         2 * usual <= work.max_cluster)
    usual *= 2;
  if (!fits(usual) || work.panels * usual < work.multiprocessors) return 0;

  // The time relative to that of a device which moves all bytes at its full speed.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto slowdown = [&](int blocks) {
    const int64_t at_once = active(blocks);
    if (at_once == 0) return kNever;
    const int64_t waves = (work.panels + at_once - 1) / at_once;
    const int64_t wave = std::max<int64_t>(std::min(at_once, work.panels) * blocks, work.multiprocessors);
    return static_cast<double>(waves * wave) / static_cast<double>(work.panels * blocks);
  };
  double best = slowdown(usual);
  int choice = usual;
  const double worth = best / kWorthAnotherCluster;
  for (int blocks = 1; best > 1 && blocks <= work.max_cluster; blocks *= 2)
    if (blocks != usual && fits(blocks))
      if (const double other = slowdown(blocks); other < std::min(best, worth)) best = other, choice = blocks;
  const auto bytes = static_cast<double>(work.bytes);
  return kResidentOverhead * best * work.passes * bytes < work.passes_of_two * bytes + kBytesOfALaunch
             ? choice
             : 0;
}

}  // namespace palimpsest::kernels::cuda
