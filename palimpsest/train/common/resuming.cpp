#include "palimpsest/train/common/resuming.h"

#include "palimpsest/train/common/require.h"

#include <fmt/format.h>

namespace palimpsest::train {
namespace {

/// The name of the order in messages, where a checkpoint of an older program names none.
const std::string kFirstOrder = "first_example_stream";

std::string processes(int count) {
  return fmt::format("{} process{}", count, count == 1 ? "" : "es");
}

}  // namespace

void require_same_order(const std::filesystem::path& checkpoint, const RunState& state,
                        const BatchSource& source) {
  const auto same = [&](const char* what, auto saved, auto now) {
    require(saved == now,
            fmt::format("{} was made with {} {}, this run has {}: the order of the data would not continue; "
                        "resume with the options of the run, or begin a new one",
                        checkpoint.string(), what, saved, now));
  };
  same("seed", state.seed, source.seed());
  same("batch size", state.batch_size, source.batch_size());
  same("batches per epoch", state.batches_per_epoch, source.batches());
  same("order", state.order.empty() ? kFirstOrder : state.order,
       source.order().empty() ? kFirstOrder : source.order());
}

std::vector<std::string> notes_on_resuming(const RunState& state, const TrainerOptions& options,
                                           const Step& step, int rank, int ranks) {
  std::vector<std::string> notes;
  if (rank == 0 && state.precision != options.precision)
    notes.push_back(fmt::format(
        "the checkpoint of step {} was trained in {}, the run goes on in {}: parameters and momentum are "
        "{} in both{}",
        state.step, state.precision, options.precision, options.dtype,
        step.scales() ? fmt::format(", the loss scale is {}", step.loss_scale()) : ""));
  const int before = static_cast<int>(state.other_ranks.size()) + 1;
  if (before == ranks) return notes;
  notes.push_back(fmt::format(
      "the checkpoint is of a run of {}, this one has {}: the order of the images goes "
      "on, the last bits of sums may differ{}",
      processes(before), ranks,
      before < ranks ? fmt::format(", and processes from number {} on draw new random numbers", before)
                     : ""));
  return notes;
}

}  // namespace palimpsest::train
