#pragma once

#include "palimpsest/io/event_file.h"
#include "palimpsest/train/records.h"

#include <cstdint>
#include <filesystem>

namespace palimpsest::train {

/// Writes the files of a run that reports and TensorBoard read, beside log.jsonl: evaluation.safetensors,
/// step_memory.safetensors (report/details.h) and, if wanted, event files (io/event_file.h).
///
/// Nothing is written or removed before the first record: a run that fails before its first step leaves the
/// files of the run that it was to replace.
class RunFiles {
 public:
  /// `steps_done`: steps of the checkpoint that the run resumes; 0: a run that begins, which replaces the
  /// files of an earlier one.
  RunFiles(std::filesystem::path folder, bool tensorboard, int64_t steps_done);

  /// Returns whether the next step is to be recorded: the second one of this call, so that the optimizer has
  /// its state, unless the run has a recording.
  bool wants_timeline(int64_t steps_taken) const { return steps_taken == 1 && !has_timeline_; }
  void write(const StepTimeline& timeline);
  void write(const StepRecord& record, bool logged);
  void write(const EvaluationRecord& record, const EvaluationDetails& details);
  void write(const ExponentRecord& record);

 private:
  void begin();

  std::filesystem::path folder_;
  bool tensorboard_;
  int64_t steps_done_;
  bool has_timeline_ = false;
  bool begun_ = false;
  io::EventFile events_;
};

}  // namespace palimpsest::train
