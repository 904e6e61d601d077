#include "palimpsest/kernels/cuda/group_statistics.h"

#include "palimpsest/kernels/no_cuda/refuse.h"

// kernels/cuda/group_statistics.h for a build without CUDA.
namespace palimpsest::kernels::cuda {

void merge_statistics(const GroupParts&, double, const GroupStatistics&, DType, const RunningStatistics&,
                      Stream) {
  refuse("merge_statistics");
}

}  // namespace palimpsest::kernels::cuda
