#pragma once

#include "palimpsest/amp/exponent_histogram.h"
#include "palimpsest/train/metrics.h"

#include <cstdint>

// The records of a training, which are the lines of log.jsonl.
namespace palimpsest::train {

/// One step. Bytes are 0 where the counting allocator is not installed. With loader threads they include the
/// batches that are being prefetched; with 0 workers they are exact.
struct StepRecord {
  int64_t step = 0;   ///< steps done, this one included: the first is 1
  int64_t epoch = 0;  ///< of the step, from 0
  double loss = 0, lr = 0;
  double seconds = 0;            ///< from having the batch to the updated parameters
  double data_seconds = 0;       ///< waited for the batch before that
  double images_per_second = 0;  ///< since the last line of the log, waiting included
  double eta_seconds = 0;        ///< to the end of the run at the mean pace so far, evaluations not counted
  int64_t kept_bytes = 0;        ///< saved for backward (memory/meter.h)
  int64_t current_bytes = 0;     ///< live after the step: parameters, momentum, ...
  int64_t peak_bytes = 0;        ///< highest during the step
  double loss_scale = 1;         ///< of this step; 1 in f32 and bf16
  int64_t skipped_steps = 0;     ///< in total, this one included: gradients that were not finite (f16)
  /// Forward passes, since this run began or was resumed, of layers that saved x-hat beside z because a
  /// |weight| was too small (ops/abn.h): each costs one more tensor.
  int64_t abn_fallbacks = 0;
};

/// The gradients of one step by binary exponent (amp/exponent_histogram.h).
struct ExponentRecord {
  int64_t step = 0;
  amp::ExponentHistogram activations, weights;
  double recommended_scale = 1;  ///< serves both
};

struct EvaluationRecord {
  int64_t step = 0, epoch = 0;  ///< steps and epochs done; 0 outside of a training run
  double loss = 0;              ///< mean over all valid pixels (images) of the pass
  Metrics metrics;              ///< mean and per-class IoU, or top-1 and top-5
  int64_t images = 0;
  bool segmentation = false;  ///< which fields of `metrics` are set
};

}  // namespace palimpsest::train
