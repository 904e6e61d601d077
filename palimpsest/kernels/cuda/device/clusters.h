#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

/// How many blocks share a panel in a launch that keeps each panel in shared memory (a resident launch), or whether two
/// launches without it take less time. Plain arithmetic on what the device says, so
/// that tests need no device.
namespace palimpsest::kernels::cuda {

struct ResidentWork {
  int64_t panels = 0;     ///< one cluster of blocks each
  int64_t bytes = 0;      ///< of one tensor
  int passes = 2;         ///< tensors that the resident launch reads and writes
  int passes_of_two = 3;  ///< those of the two launches together
  int64_t shared = 0;     ///< shared memory of a multiprocessor that blocks can use
  int64_t besides = 0;    ///< what a block needs of it besides its share of a panel
  int multiprocessors = 1;
  int max_cluster = 1;  ///< blocks; a power of two
};

/// More blocks per panel, though one would do, are for panels of which a block holds more than this.
inline constexpr int64_t kSmallShare = 16 * 1024;
/// What a device moves in the 2 to 3 us that a second launch costs.
inline constexpr double kBytesOfALaunch = 8e6;
/// A device is not asked to do without its usual cluster for less.
inline constexpr double kWorthAnotherCluster = 1.1;
/// Measured on an H100: the time of a resident launch, whose blocks all wait between reading and writing, over that of
/// launches which move as many bytes without a wait. With full waves.
inline constexpr double kResidentOverhead = 1.35;

namespace resident_detail {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

/// The time of clusters of so many blocks relative to that of a device which moves all bytes at its full speed. A wave
/// takes the time of a full one, and of one block per multiprocessor at least.
inline double slowdown(const ResidentWork& work, int blocks, int64_t at_once) {
  if (at_once == 0) return kNever;
  const int64_t waves = (work.panels + at_once - 1) / at_once;
  const int64_t wave = std::max<int64_t>(std::min(at_once, work.panels) * blocks, work.multiprocessors);
  return static_cast<double>(waves * wave) / static_cast<double>(work.panels * blocks);
}

struct Choice {
  int blocks = 0;  ///< 0: none
  double slowdown = kNever;
  bool one_wave = false;
};

/// The choice with `per_multiprocessor` blocks on each multiprocessor.
///
/// The usual choice needs few blocks per panel, but nearly two blocks per multiprocessor (256 for 132, because a second
/// wave of as many takes longer than it gains). It holds if all clusters run at once. Otherwise clusters are left for a
/// second wave, in which most of the device idles: a GPC of 14 instead of 16 multiprocessors has room for 3 clusters of 8
/// in place of 4, and a MIG slice may have none. Then the time of each choice is compared.
template <class Share, class Active>
Choice in_waves(const ResidentWork& work, int per_multiprocessor, const Share& share, const Active& active) {
  const int64_t room = work.shared / per_multiprocessor - work.besides;
  const auto fits = [&](int blocks) { return blocks <= work.max_cluster && share(blocks) <= room; };
  int usual = 1;
  while (!fits(usual) && 2 * usual <= work.max_cluster) usual *= 2;
  while (16 * work.panels * usual < 15 * int64_t{work.multiprocessors} * per_multiprocessor &&
         share(usual) > kSmallShare && 2 * usual <= work.max_cluster)
    usual *= 2;
  if (!fits(usual) || 20 * work.panels * usual < 19 * int64_t{work.multiprocessors}) return {};

  Choice best;
  const auto consider = [&](int blocks, double worth) {
    const int64_t at_once = active(blocks);
    // Alone on its multiprocessor, a block has nobody who works while it waits: more than one wave of them takes longer.
    if (per_multiprocessor == 1 && at_once < work.panels) return;
    if (const double time = slowdown(work, blocks, at_once); time < std::min(best.slowdown, worth))
      best = {blocks, time, at_once >= work.panels};
  };
  consider(usual, kNever);
  const double worth = best.slowdown / kWorthAnotherCluster;
  for (int blocks = 1; best.slowdown > 1 && blocks <= work.max_cluster; blocks *= 2)
    if (blocks != usual && fits(blocks)) consider(blocks, worth);
  return best;
}

}  // namespace resident_detail

/// Returns the blocks per panel, a power of two up to max_cluster, or 0: make two launches.
///   share(blocks)    bytes of shared memory per block if so many share a panel
///   active(blocks)   clusters of so many blocks that the device runs at once; 0: it refuses them
/// Two blocks per multiprocessor, so that one reads while the other writes; one where only so all panels are on the device at
/// once.
template <class Share, class Active>
int blocks_per_panel(const ResidentWork& work, const Share& share, const Active& active) {
  resident_detail::Choice choice = resident_detail::in_waves(work, 2, share, active);
  if (!choice.one_wave)
    if (const auto alone = resident_detail::in_waves(work, 1, share, active);
        alone.slowdown < choice.slowdown)
      choice = alone;
  const auto bytes = static_cast<double>(work.bytes);
  return kResidentOverhead * choice.slowdown * work.passes * bytes <
                 work.passes_of_two * bytes + kBytesOfALaunch
             ? choice.blocks
             : 0;
}

}  // namespace palimpsest::kernels::cuda
