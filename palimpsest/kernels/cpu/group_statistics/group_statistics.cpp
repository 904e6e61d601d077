#include "palimpsest/kernels/formulas/group_statistics.h"

namespace palimpsest::kernels::cpu {

void merge_statistics(const GroupParts& parts, double eps, const GroupStatistics& merged, DType running_dtype,
                      const RunningStatistics& running) {
  const bool wide = running_dtype == DType::f64;
  for (int64_t c = 0; c < parts.channels; ++c)
    wide ? merge_channel<double>(parts, eps, merged, running, c)
         : merge_channel<float>(parts, eps, merged, running, c);
}

}  // namespace palimpsest::kernels::cpu
