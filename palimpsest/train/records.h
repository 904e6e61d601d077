#pragma once

#include "palimpsest/amp/exponent_histogram.h"
#include "palimpsest/memory/timeline.h"
#include "palimpsest/train/metrics.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// The records of a training. Steps, exponents and evaluations are the lines of log.jsonl.
namespace palimpsest::train {

/// One step. On a CPU, bytes are 0 if the counting allocator is not installed, and current_bytes and peak_bytes
/// include the batches that loader threads prefetch.
struct StepRecord {
  int64_t step = 0;   ///< steps done, this one included: the first is 1
  int64_t epoch = 1;  ///< in which the step is; the first is 1
  double loss = 0, lr = 0;
  double seconds = 0;            ///< from the arrival of the batch to the updated parameters
  double data_seconds = 0;       ///< waiting time for the batch, before `seconds`
  double images_per_second = 0;  ///< since the last line of the log, waiting included
  double eta_seconds = 0;        ///< to the end of the run at the mean pace so far, without evaluations
  int64_t kept_bytes = 0;        ///< saved for backward (memory/meter.h)
  int64_t current_bytes = 0;     ///< live after the step: parameters, momentum, ...
  int64_t peak_bytes = 0;        ///< highest during the step
  double loss_scale = 1;         ///< of this step; 1 in f32 and bf16
  int64_t skipped_steps = 0;     ///< steps so far, this one included, whose gradients were not finite (f16)
  /// Forward passes of layers, since this run began or was resumed, that saved the normalized input beside
  /// the output because a |weight| was too small (ops/abn.h). Each costs one more tensor.
  int64_t abn_fallbacks = 0;
  /// With clip_norm: the norm of all gradients of the step before they were clipped (train/clip.h). NaN or
  /// infinite in a skipped step.
  std::optional<double> gradient_norm = std::nullopt;
};

/// The gradients of one step by binary exponent (amp/exponent_histogram.h).
struct ExponentRecord {
  int64_t step = 0;
  amp::ExponentHistogram activations, weights;
  double recommended_scale = 1;  ///< for both histograms
};

/// An image that could not be read, at its first appearance in a run.
struct BadImageRecord {
  int64_t step = 0;
  std::string reason;  ///< names the file
};

/// The end of a run before its last step.
struct EndRecord {
  int64_t step = 0, epoch = 0;  ///< done
  std::string reason;           ///< "no better loss than 0.25 of step 30 in 3 evaluations"
};

struct EvaluationRecord {
  int64_t step = 0, epoch = 0;  ///< steps and epochs done; 0 outside of a training run
  double loss = 0;              ///< mean over all valid pixels (images) of the pass; NaN if there are none
  Metrics metrics;              ///< mean and per-class IoU, or top-1 and top-5
  int64_t images = 0;
  int64_t bad_images = 0;        ///< that could not be read, and are not among `images`
  std::vector<std::string> bad;  ///< why, of at most the first 3
  bool segmentation = false;     ///< which fields of `metrics` are set
  bool labelled = true;          ///< false: no pixel has a class
  /// false: no pixel counts in the loss: none has a class, or class weights or bootstrapping leave out those
  /// that have one.
  bool weighed = true;
  /// (classes, classes): the pixels (images) of a true class, the row, by predicted class, the column. Empty
  /// for classification unless EvaluationOptions::confusion_classes asks for it, and if outputs are NaN.
  std::vector<int64_t> confusion;
  /// With keep_best: whether this is the best evaluation of the run so far (train/best.h).
  std::optional<bool> best = std::nullopt;
};

/// An image of an evaluation with its truth and the prediction, at most 512 pixels high and wide.
struct EvaluationPicture {
  std::string name;
  at::Tensor image;              ///< u8 (H, W, 3)
  at::Tensor truth, prediction;  ///< class ids: u8 (H, W), 255 for void; i64 scalars for labels of images
};

/// The part of an evaluation that a log has no room for: the file evaluation.safetensors (report/details.h).
struct EvaluationDetails {
  int64_t step = 0, epoch = 0;
  bool segmentation = false;
  std::vector<std::string> class_names;  ///< one per class
  at::Tensor class_colors;               ///< u8 (classes, 3)
  at::Tensor confusion;  ///< i64 (classes, classes), [truth, prediction]; undefined: not counted
  std::vector<EvaluationPicture> pictures;
};

/// The live bytes over the time of one step: the file step_memory.safetensors (report/details.h).
struct StepTimeline {
  int64_t step = 0;
  std::vector<memory::Timeline::Sample> samples;
  std::vector<memory::Timeline::Mark> marks;  ///< "forward", "backward", "step"
};

}  // namespace palimpsest::train
