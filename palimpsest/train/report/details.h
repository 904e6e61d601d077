#pragma once

#include "palimpsest/data/loader.h"
#include "palimpsest/train/records.h"
#include "palimpsest/train/trainer.h"

#include <cstdint>
#include <filesystem>
#include <vector>

namespace palimpsest::train {

/// The files of a run that `palimpsest report` reads beside log.jsonl. So a report needs neither the data nor
/// the network.
inline constexpr const char* kEvaluationFile = "evaluation.safetensors";
inline constexpr const char* kStepMemoryFile = "step_memory.safetensors";

/// Writes the last evaluation: the tensors `class_colors`, `confusion` and, for each picture K from 0,
/// `picture.K.image`, `picture.K.truth` and `picture.K.prediction`; the metadata `step`, `epoch`,
/// `segmentation`, `class_names` and `picture_names` (JSON lists). Atomic. Throws Error(kOutput).
void write_evaluation(const std::filesystem::path& path, const EvaluationDetails& details);
/// Throws Error(kCheckpoint), with the path, for a file that is missing, damaged or has other contents.
EvaluationDetails read_evaluation(const std::filesystem::path& path);

/// Writes the memory of one step: the tensors `seconds` (f64) and `bytes` (i64), one value per sample, and
/// `mark_seconds`; the metadata `step` and `mark_names` (JSON list). Atomic. Throws Error(kOutput).
void write_step_memory(const std::filesystem::path& path, const StepTimeline& timeline);
/// Throws as read_evaluation does.
StepTimeline read_step_memory(const std::filesystem::path& path);

/// Moves the confusion matrix out of the record, because a thousand records would hold a thousand of them,
/// and returns it with the names and colours of the classes.
EvaluationDetails take_details(EvaluationRecord& record, std::vector<EvaluationPicture> pictures,
                               const ReportOptions& options);

/// Takes a few pictures out of the batches of an evaluation, spread over the whole set.
class PictureSampler {
 public:
  /// `images`: the images of the evaluation, or a few more. `ignore_id`: the label of void pixels.
  PictureSampler(const ReportOptions& options, int64_t images, int64_t ignore_id);
  /// Looks at the next batch. An EvaluationObserver (train/evaluate.h). Inputs that are not RGB images, and
  /// labels of another size than the image, give no picture.
  void add(const data::Batch& batch, const at::Tensor& logits);
  std::vector<EvaluationPicture> take() { return std::move(pictures_); }

 private:
  bool wants(int64_t index) const;

  const ReportOptions& options_;
  int64_t images_, ignore_id_;
  int64_t seen_ = 0;
  std::vector<EvaluationPicture> pictures_;
};

}  // namespace palimpsest::train
