#include "palimpsest/train/common/run_checkpoints.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/train/common/ranks.h"
#include "palimpsest/train/common/resuming.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <system_error>
#include <utility>
#include <vector>

namespace palimpsest::train {

RunCheckpoints::RunCheckpoints(const TrainerOptions& options, BatchSource& source, distributed::Group* group,
                               RunParts run)
    : options_(options), source_(source), group_(group), run_(run) {}

bool RunCheckpoints::writes() const {
  return !options_.output.empty() && rank() == 0;
}

void RunCheckpoints::begin() {
  at::manual_seed(rank_seed(options_.seed, 0, rank()));
  if (writes()) data_identity_ = source_.identity();
}

RunState RunCheckpoints::resume() {
  RunState state;
  if (rank() == 0) {
    at::manual_seed(options_.seed);  // a checkpoint made on the CPU has no state for a GPU's generator
    state = load_checkpoint(path(), run_.module, run_.optimizer);
    require_same_order(path(), state, source_);
    data_identity_ = source_.identity();
    require_same_data(path(), state.data, data_identity_);
  }
  if (group_) {
    share_state(*group_, state);
    share_optimizer_state(*group_, run_.optimizer, run_.module);
    if (rank() > 0) at::manual_seed(rank_seed(options_.seed, state.step, rank()));
    if (rank() > 0 && rank() <= static_cast<int>(state.other_ranks.size()))
      set_generator_states(run_.module, state.other_ranks[static_cast<std::size_t>(rank() - 1)],
                           path().string());
  }
  saved_step_ = state.step;
  return state;
}

void RunCheckpoints::save_first() {
  // A checkpoint before the first step: an unwritable folder fails now and not after an epoch, and a run that is
  // killed early can be resumed. A kill may come between any two of these files. In an empty folder config.toml
  // comes first: it tells how to begin again. In the folder of an earlier run the checkpoint comes first: from
  // then on the folder holds this run, whose log has no step.
  std::error_code ignored;
  if (writes() && !std::filesystem::exists(path(), ignored)) write_config();
  save(0);
}

void RunCheckpoints::save(int64_t step) {
  if (options_.output.empty()) return;
  write(path(), step);
  saved_step_ = step;
  if (writes() && !wrote_config_) write_config();
}

void RunCheckpoints::save_best(int64_t step) {
  if (!options_.output.empty()) write(options_.output / kBestFile, step);
}

void RunCheckpoints::write(const std::filesystem::path& path, int64_t step) {
  std::vector<GeneratorStates> other_ranks;
  if (group_) {
    run_.parallel->broadcast_buffers();
    other_ranks = gather_generator_states(*group_, run_.module);
  }
  if (!writes()) return;
  RunState state{step,
                 source_.batches(),
                 source_.batch_size(),
                 source_.seed(),
                 options_.metadata,
                 options_.precision,
                 run_.step.state(),
                 source_.order(),
                 data_identity_,
                 std::move(other_ranks)};
  if (!options_.config.empty()) state.metadata["config"] = options_.config;
  if (run_.average) state.averages = run_.average->tensors();
  if (run_.best) state.best = run_.best->state();
  try {
    save_checkpoint(path, run_.module, run_.optimizer, state);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kDiverged) throw;
    throw Error(ErrorKind::kDiverged, error.what() + remaining());
  }
}

void RunCheckpoints::write_config() {
  wrote_config_ = true;
  const std::string& text = options_.config_file.empty() ? options_.config : options_.config_file;
  if (!text.empty()) io::write_file_atomically(options_.output / kConfigFile, text);
}

std::string RunCheckpoints::remaining() const {
  if (saved_step_ <= 0) return "";
  return fmt::format("; {} of step {} stays{}", path().string(), saved_step_,
                     bad_evaluation_ == saved_step_ ? ", but its evaluation was not finite already" : "");
}

std::string RunCheckpoints::lost_best() const {
  std::error_code ignored;
  const std::filesystem::path file = options_.output / kBestFile;
  if (!writes() || !run_.best || !run_.best->state().value || std::filesystem::exists(file, ignored))
    return "";
  return fmt::format(
      "{} of step {} is gone: it is written again once an evaluation is better than {:.4f}, and not before",
      file.string(), run_.best->state().step, *run_.best->state().value);
}

}  // namespace palimpsest::train
