#pragma once

#include "palimpsest/amp/exponent_histogram.h"
#include "palimpsest/train/metrics.h"

#include <cstdint>

namespace palimpsest::train {

/// One step, as log.jsonl has it. Bytes are 0 where the counting allocator is not installed; with loader
/// threads they include the batches being prefetched (0 workers: exact).
struct StepRecord {
  int64_t step = 0;   ///< steps done, this one included: the first is 1
  int64_t epoch = 0;  ///< that the step belongs to, from 0
  double loss = 0, lr = 0;
  double seconds = 0;            ///< from the batch in hand to the parameters updated
  double data_seconds = 0;       ///< waited for the batch before that
  double images_per_second = 0;  ///< since the last line of the log, waiting included
  double eta_seconds = 0;        ///< to the end of the run at the mean pace so far, evaluations not counted
  int64_t kept_bytes = 0;        ///< saved for backward (memory/meter.h)
  int64_t current_bytes = 0;     ///< live after the step: parameters, momentum, ...
  int64_t peak_bytes = 0;        ///< highest during the step
  double loss_scale = 1;         ///< of this step; 1 in f32 and bf16
  int64_t skipped_steps = 0;     ///< in all, this one included: gradients that were not finite (f16)
  /// Forward passes since this run began (resuming begins one) of layers that kept x-hat beside z because a
  /// |weight| was too small (ops/abn.h): each costs one more tensor.
  int64_t abn_fallbacks = 0;
};

/// Gradients of one step by binary exponent (amp/exponent_histogram.h).
struct ExponentRecord {
  int64_t step = 0;
  amp::ExponentHistogram activations, weights;
  double recommended_scale = 1;  ///< for both
};

struct EvaluationRecord {
  int64_t step = 0, epoch = 0;  ///< steps and epochs done; 0 outside of a training run
  double loss = 0;              ///< mean over all valid pixels (images) of the pass
  Metrics metrics;              ///< train/metrics.h: mean and per-class IoU, or top-1 and top-5
  int64_t images = 0;
  bool segmentation = false;  ///< which fields of `metrics` are filled
};

}  // namespace palimpsest::train
