#pragma once

#include "palimpsest/base/host_device.h"
#include "palimpsest/kernels/formulas/abn_formulas.h"
#include "palimpsest/kernels/group_statistics.h"

#include <cmath>
#include <cstdint>

namespace palimpsest::kernels {

/// Merges channel c of all parts. `T`: the type of the running statistics, float or double.
template <class T>
PALIMPSEST_HOST_DEVICE void merge_channel(const GroupParts& parts, double eps, const GroupStatistics& merged,
                                          const RunningStatistics& running, int64_t c) {
  double count = 0, mean = 0, squares = 0;
  const int64_t size = 2 * parts.channels + 1;
  for (int64_t rank = 0; rank < parts.ranks; ++rank) {
    const double* const part = parts.values + rank * size;
    const double added = part[2 * parts.channels];
    if (!(added > 0)) continue;
    const double share = added / (count + added), delta = part[c] - mean;
    mean += delta * share;
    squares += part[parts.channels + c] * added + delta * delta * count * share;
    count += added;
  }
  const double var = count > 0 ? squares / count : 0;
  merged.mean[c] = mean;
  merged.var[c] = var;
  if (merged.inv_std) merged.inv_std[c] = 1 / std::sqrt(var + eps);
  if (c == 0) *merged.count = count;
  if (!running.mean || count < 2) return;
  move_running(static_cast<T*>(running.mean)[c], mean, running.momentum);
  move_running(static_cast<T*>(running.var)[c], squares / (count - 1), running.momentum);
}

}  // namespace palimpsest::kernels
