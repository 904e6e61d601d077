#pragma once

#include "palimpsest/base/host_device.h"
#include "palimpsest/kernels/formulas/abn_formulas.h"
#include "palimpsest/kernels/group_statistics.h"

#include <cmath>
#include <cstdint>

namespace palimpsest::kernels {

/// How a part counts beside the parts before it; the same for all channels.
struct PartWeight {
  double added = 0;   ///< values per channel of the part
  double share = 0;   ///< added / (values of this part and of those before it)
  double spread = 0;  ///< values of the parts before it * share
};

/// Returns the weight of a part behind `before` values; all 0 for an empty batch.
PALIMPSEST_HOST_DEVICE PartWeight part_weight(const GroupParts& parts, int64_t rank, double before) {
  const double added = parts.values[rank * (2 * parts.channels + 1) + 2 * parts.channels];
  if (!(added > 0)) return {};
  const double share = added / (before + added);
  return {added, share, before * share};
}

/// Adds a part to the mean of a channel and to the sum of squares around it.
PALIMPSEST_HOST_DEVICE void add_part(const PartWeight& weight, double part_mean, double part_var,
                                     double& mean, double& squares) {
  const double delta = part_mean - mean;
  mean += delta * weight.share;
  squares += part_var * weight.added + delta * delta * weight.spread;
}

/// Writes the results of channel c, whose parts are all added. `T`: the type of the running statistics, float
/// or double.
template <class T>
PALIMPSEST_HOST_DEVICE void finish_channel(double count, double mean, double squares, double eps,
                                           const GroupStatistics& merged, const RunningStatistics& running,
                                           int64_t c) {
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
