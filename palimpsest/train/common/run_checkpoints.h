#pragma once

#include "palimpsest/distributed/data_parallel.h"
#include "palimpsest/train/batch_source.h"
#include "palimpsest/train/best.h"
#include "palimpsest/train/checkpoint.h"
#include "palimpsest/train/ema.h"
#include "palimpsest/train/step.h"
#include "palimpsest/train/trainer.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace palimpsest::train {

/// The parts of a run that a checkpoint holds. They belong to the run; those that it does not use are empty.
struct RunParts {
  torch::nn::Module& module;
  torch::optim::Optimizer& optimizer;
  const Step& step;
  const std::optional<Average>& average;
  const std::optional<Best>& best;
  std::optional<distributed::DataParallel>& parallel;
};

/// The files of a run that it can be resumed from: checkpoint, best checkpoint and configuration. Rank 0 writes
/// them, if there is an output folder.
class RunCheckpoints {
 public:
  /// `group`: null for one process. The arguments must outlive the object.
  RunCheckpoints(const TrainerOptions& options, BatchSource& source, distributed::Group* group, RunParts run);

  /// Begins a new run: seeds libtorch's generator.
  void begin();
  /// Loads the checkpoint into module, optimizer and generator of every rank; step, average and best are the
  /// caller's to resume. Collective. Throws as load_checkpoint does, and Error(kUsage) for other data or another
  /// order of it.
  RunState resume();

  /// Writes the first files of the run: those of an earlier run stay until its checkpoint is replaced.
  void save_first();
  /// Writes the state after `step`, whose loss is known to be finite. Collective.
  void save(int64_t step);
  /// Writes the same as the best checkpoint. Collective.
  void save_best(int64_t step);
  // These three throw Error(kDiverged), which names the last checkpoint, for a parameter that is not finite.

  /// Whether this process writes the files.
  bool writes() const;
  int64_t saved_step() const { return saved_step_; }  ///< of the checkpoint on disk; -1: none of this run
  /// Notes that the loss of the evaluation after `step` was not finite.
  void mark_bad_evaluation(int64_t step) { bad_evaluation_ = step; }
  /// Returns "; FILE of step 4 stays", the part of an error message that names the last checkpoint, or "".
  std::string remaining() const;
  /// Returns what is to be told of a resumed run whose best checkpoint is not there any more, or "".
  std::string lost_best() const;

 private:
  void write(const std::filesystem::path& path, int64_t step);
  void write_config();
  std::filesystem::path path() const { return options_.output / kCheckpointFile; }
  int rank() const { return group_ ? group_->rank() : 0; }

  const TrainerOptions& options_;
  BatchSource& source_;
  distributed::Group* const group_;
  const RunParts run_;
  int64_t saved_step_ = -1, bad_evaluation_ = -1;
  bool wrote_config_ = false;
  std::string data_identity_;
};

}  // namespace palimpsest::train
