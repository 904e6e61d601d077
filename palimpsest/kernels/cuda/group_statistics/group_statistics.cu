#include "palimpsest/kernels/cuda/group_statistics.h"

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/vector16.cuh"
#include "palimpsest/kernels/formulas/group_statistics.h"

namespace palimpsest::kernels::cuda {
namespace {

/// Grid: one thread per channel.
template <class T>
__global__ void __launch_bounds__(kThreads)
    merge_statistics_kernel(GroupParts parts, double eps, GroupStatistics merged, RunningStatistics running) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= parts.channels) return;
  double count = 0, mean = 0, squares = 0;
  for (int64_t rank = 0; rank < parts.ranks; ++rank) {
    const PartWeight weight = part_weight(parts, rank, count);
    if (weight.added == 0) continue;  // the variance of an empty batch may be NaN
    const double* const part = parts.values + rank * (2 * parts.channels + 1);
    add_part(weight, part[c], part[parts.channels + c], mean, squares);
    count += weight.added;
  }
  finish_channel<T>(count, mean, squares, eps, merged, running, c);
}

}  // namespace

void merge_statistics(const GroupParts& parts, double eps, const GroupStatistics& merged, DType running_dtype,
                      const RunningStatistics& running, Stream stream) {
  if (parts.channels == 0) return;
  const LaunchShape shape{.blocks = ceil_divide(parts.channels, kThreads), .threads = kThreads};
  if (running_dtype == DType::f64)
    launch("merge_statistics", shape, stream, merge_statistics_kernel<double>, parts, eps, merged, running);
  else
    launch("merge_statistics", shape, stream, merge_statistics_kernel<float>, parts, eps, merged, running);
}

}  // namespace palimpsest::kernels::cuda
