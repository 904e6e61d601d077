#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/kernels/abn.h"

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <string>

namespace palimpsest::ops::synchronization {

/// What the ranks of a group agree on for one layer: (C) f64 each, but for `count`, (1) f64.
struct GroupStatistics {
  at::Tensor mean;
  at::Tensor var;      ///< biased
  at::Tensor inv_std;  ///< 1 / sqrt(var + eps)
  at::Tensor count;    ///< values per channel in the whole batch
};

/// The batch of this rank, of which a group computes the statistics together.
struct OwnBatch {
  const at::Tensor& like;  ///< any tensor on its device
  int64_t channels;
  int64_t values;  ///< per channel; 0 for an empty batch
  /// Writes mean and biased variance of this rank's batch, (channels) f64 each on the device. Not called for
  /// an empty batch.
  c10::function_ref<void(double* mean, double* var)> statistics;
};

/// Returns the statistics of the whole batch, by one collective of 2 * channels + 1 numbers: the same bytes
/// on every rank. Moves the running statistics whose pointers are not null (`running_dtype`: f32 or f64).
/// Within a segment that runs again it returns what the first run returned, and nothing else happens
/// (base/segment_log.h).
/// Raises c10::ValueError on every rank if the whole batch has one value per channel. To know that, a rank
/// whose own batch has one value or none waits for its GPU. It cannot wait while a CUDA graph is recorded: then
/// such a batch only leaves the running statistics as they are.
GroupStatistics whole_batch(const std::string& group, const OwnBatch& own, double eps,
                            DType running_dtype = DType::f32, const kernels::RunningStatistics& running = {});

}  // namespace palimpsest::ops::synchronization
