#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/kernels/abn.h"

#include <cstdint>

/// Statistics of a batch that several processes (ranks) share: each has computed mean and variance of its
/// part, and all parts are merged into those of the whole batch.
///
/// Every rank merges the same numbers in the order of the ranks, so all get the same bytes.
/// Source: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
/// 1979; Rota Bulo, Porzi, Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of
/// DNNs", CVPR 2018, section 4.3, synchronizes the layer in this way.
namespace palimpsest::kernels {

/// The parts of all ranks, one behind the other. A part has 2 * channels + 1 values: mean (channels), biased
/// variance (channels), and the number of values per channel, which is 0 for an empty batch. (The variance of
/// an empty batch may be anything.)
struct GroupParts {
  const double* values = nullptr;
  int64_t ranks = 0;
  int64_t channels = 0;
};

/// The statistics of the whole batch: (channels) each, but for `count`, one value.
struct GroupStatistics {
  double* mean = nullptr;
  double* var = nullptr;      ///< biased
  double* inv_std = nullptr;  ///< 1 / sqrt(var + eps); may be null
  double* count = nullptr;    ///< values per channel
};

namespace cpu {

/// Merges the parts, and moves the running statistics (of type `running_dtype`, f32 or f64) whose pointers
/// are not null. If all parts are empty, mean and var are 0. With less than two values per channel there is
/// no unbiased variance, and running statistics do not move.
void merge_statistics(const GroupParts& parts, double eps, const GroupStatistics& merged,
                      DType running_dtype = DType::f32, const RunningStatistics& running = {});

}  // namespace cpu

/// The same function as plain loops over all parts, which is the reference of the tests.
namespace reference {

void merge_statistics(const GroupParts& parts, double eps, const GroupStatistics& merged,
                      DType running_dtype = DType::f32, const RunningStatistics& running = {});

}  // namespace reference
}  // namespace palimpsest::kernels
