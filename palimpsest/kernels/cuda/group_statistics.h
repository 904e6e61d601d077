#pragma once

#include "palimpsest/kernels/cuda/stream.h"
#include "palimpsest/kernels/group_statistics.h"

/// kernels/group_statistics.h on NVIDIA GPUs, with the guarantees of kernels/cuda/abn.h. The host reads no
/// count: it need not know how many values the other ranks have.
namespace palimpsest::kernels::cuda {

/// One launch.
void merge_statistics(const GroupParts& parts, double eps, const GroupStatistics& merged, DType running_dtype,
                      const RunningStatistics& running, Stream stream);

}  // namespace palimpsest::kernels::cuda
