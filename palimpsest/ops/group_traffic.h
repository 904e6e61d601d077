#pragma once

#include <cstdint>

namespace palimpsest::ops {

/// What this process has handed to process groups for normalizations with statistics over a group, since it
/// started or since the last reset. Python: torch.ops.palimpsest.group_traffic and reset_group_traffic.
struct GroupTraffic {
  int64_t collectives = 0;
  int64_t bytes = 0;  ///< of this rank's own values
};
GroupTraffic group_traffic();
void reset_group_traffic();

}  // namespace palimpsest::ops
