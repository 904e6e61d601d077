#pragma once

#include "palimpsest/train/report/progress.h"
#include "palimpsest/train/report/run_files.h"
#include "palimpsest/train/report/run_log.h"
#include "palimpsest/train/step.h"
#include "palimpsest/train/trainer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::train {

/// An image that could not be read, at its first appearance in the run.
struct NewBadImage {
  std::string reason;
  bool is_named = true;  ///< on the terminal, too
};

/// A step whose numbers are known.
struct FinishedStep {
  StepRecord record;                                  ///< but for the pace, which RunReports adds
  double seconds = 0;                                 ///< of the whole step, data included
  int64_t images = 0;                                 ///< of all ranks
  std::optional<Step::Observation> observation = {};  ///< if its histograms are to be shown
  std::vector<NewBadImage> bad = {};                  ///< of all ranks
};

/// What a run tells: the log, the files of reports, the progress on the terminal, and the outcome of train().
class RunReports {
 public:
  /// `options` and `outcome` must outlive this object. `writes`: this rank writes files. `last_step`: where
  /// the run ends.
  RunReports(const TrainerOptions& options, distributed::Group* group, int64_t last_step, bool writes,
             TrainingOutcome& outcome);

  /// Begins the progress; it is for rank 0, unless the run is quiet.
  void begin_progress();
  /// Begins the files after `steps_done` steps, on the rank that writes. Returns the step of the last
  /// evaluation that the log holds, or -1.
  int64_t begin_files(int64_t steps_done);

  void note(const std::string& text);
  void add(FinishedStep step);
  /// Adds the evaluation to the outcome, too.
  void add(EvaluationRecord record, EvaluationDetails details);
  void add(const StepTimeline& timeline);
  void add(const EndRecord& record);

  bool wants_timeline(int64_t steps_taken) const { return files_ && files_->wants_timeline(steps_taken); }
  /// Returns the last evaluation of the log, on the rank that writes.
  std::optional<EvaluationRecord> last_evaluation() const;

 private:
  void show(int64_t step, const Step::Observation& seen);
  void tell_bad(const FinishedStep& step);
  void tell_fallback(int64_t count);

  const TrainerOptions& options_;
  distributed::Group* const group_;
  const int64_t last_step_;
  const bool writes_;
  TrainingOutcome& outcome_;
  std::optional<RunLog> log_;
  std::optional<RunFiles> files_;  // of the rank that writes
  std::optional<Progress> progress_;
  int64_t interval_images_ = 0;
  double interval_seconds_ = 0, run_seconds_ = 0;
  bool fallback_told_ = false;
};

}  // namespace palimpsest::train
