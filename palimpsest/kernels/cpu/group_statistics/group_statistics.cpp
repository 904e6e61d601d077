#include "palimpsest/kernels/formulas/group_statistics.h"

#include <algorithm>

namespace palimpsest::kernels::cpu {
namespace {

template <class T>
void merge(const GroupParts& parts, double eps, const GroupStatistics& merged,
           const RunningStatistics& running) {
  const int64_t channels = parts.channels;
  double* const mean = merged.mean;
  double* const squares = merged.var;  // until all parts are added
  std::fill_n(mean, channels, 0.0);
  std::fill_n(squares, channels, 0.0);
  double count = 0;
  for (int64_t rank = 0; rank < parts.ranks; ++rank) {
    const PartWeight weight = part_weight(parts, rank, count);
    if (weight.added == 0) continue;
    const double* const part = parts.values + rank * (2 * channels + 1);
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) add_part(weight, part[c], part[channels + c], mean[c], squares[c]);
    count += weight.added;
  }
  for (int64_t c = 0; c < channels; ++c)
    finish_channel<T>(count, mean[c], squares[c], eps, merged, running, c);
}

}  // namespace

void merge_statistics(const GroupParts& parts, double eps, const GroupStatistics& merged, DType running_dtype,
                      const RunningStatistics& running) {
  if (running_dtype == DType::f64)
    merge<double>(parts, eps, merged, running);
  else
    merge<float>(parts, eps, merged, running);
}

}  // namespace palimpsest::kernels::cpu
