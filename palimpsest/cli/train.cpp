#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/process.h"
#include "palimpsest/cli/processes.h"
#include "palimpsest/cli/run_folder.h"
#include "palimpsest/cli/weights_file.h"
#include "palimpsest/train/device.h"

#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <iostream>
#include <optional>

namespace palimpsest::cli {
namespace {

/// Says how a run that has no step left goes on. Its checkpoint may be beyond the end that the user gave.
void tell_complete(const Options& options, int64_t step, int64_t batches_per_epoch) {
  if (options.output.quiet) return;
  const bool by_steps = options.train.max_steps > 0 && options.train.max_steps <= step;
  const bool by_epochs = options.train.epochs * batches_per_epoch <= step;
  const std::string more_epochs = fmt::format("--epochs N with N > {}", step / batches_per_epoch);
  const std::string more_steps = fmt::format("--max-steps M with M > {}, or 0", step);
  const std::string way_out = by_steps && by_epochs
                                  ? more_epochs + " and " + more_steps + ", go on"
                                  : (by_steps ? more_steps + "," : more_epochs) + " goes on";
  fmt::print(stderr, "palimpsest: the run in '{}' is complete at step {}, nothing was changed: {}\n",
             printable(options.output.folder), step, way_out);
}

/// Says how a run goes on that --patience has ended before.
void tell_stopped_early(const Options& options, int64_t step) {
  if (options.output.quiet) return;
  fmt::print(
      stderr,
      "palimpsest: the run in '{}' stopped early at step {}, nothing was changed: --patience N with N > "
      "{}, or 0, goes on\n",
      printable(options.output.folder), step, options.train.patience);
}

/// Throws Error(kUsage) if the processes have found different data.
void check_same_data(distributed::Group& group, const Options& options, const Datasets& sets) {
  Options same = options;
  same.data.root.clear();
  std::string text = to_toml(same, Scope::kRun);
  const auto describe = [&](const char* name, const data::Dataset& set) {
    const std::string identity = set.identity();
    text += fmt::format("{} {}{}\n", name, set.size(), identity.empty() ? "" : ", of the files: " + identity);
  };
  describe("training images", *sets.train);
  if (sets.validation) describe("validation images", *sets.validation);
  group.require_same(text,
                     "the data (number, names and sizes of the files; copy them again, or give all ranks one "
                     "folder)");
}

/// Trains in the output folder, which rank 0 holds.
int train_in_folder(Options options, distributed::Group* group) {
  const bool leads = !group || group->rank() == 0;
  if (!group && options.train.sync_norm && options.train.accumulate > 1)
    throw Error(
        ErrorKind::kUsage,
        "[train] sync_norm (--sync-norm) shares the statistics of processes, not those of the parts of "
        "[train] accumulate (--accumulate), and this is one process: start several, or leave out one of "
        "the two");
  std::optional<RunFolder> folder;
  if (leads)
    folder.emplace(options, Command::kTrain);  // before the data is read: a wrong folder is an error at once
  if (group) {
    const bool finds_run = options.run.resume;
    options.run.resume = group->any(leads && finds_run, "whether to resume");
    const bool any_finds_run = group->any(options.run.resume_if_possible && finds_run, "a run to resume");
    if (!options.run.resume && any_finds_run)
      throw Error(ErrorKind::kCheckpoint,
                  "--resume-if-possible: another process finds a run in its output folder, and rank 0 finds "
                  "none: let rank 0 see it, or remove it there");
    options.run.old_shuffle = group->any(leads && options.run.old_shuffle, "the order of the data");
  }
  const Datasets sets = make_datasets(options, Need::kTrainAndValidation);
  if (group) check_same_data(*group, options, sets);
  const auto model = make_model(options, group && options.train.sync_norm ? group->name() : "");
  // A resumed run takes the checkpoint's. The other processes take those of rank 0.
  if (!options.run.resume && leads) start_from_weights(options, *model);
  const auto train_loader = make_train_loader(options, sets);
  const auto validation_loader = sets.validation ? make_validation_loader(options, sets.validation) : nullptr;

  if (!options.output.quiet) {
    std::cout << to_toml(options, Scope::kMachine) << std::endl;  // the text of config.toml
    for (const std::string& note : options.run.resume_notes)
      std::cerr << "palimpsest: " << printable(note) << std::endl;
    if (const std::string text = learning_rate_text(options); !text.empty())
      std::cerr << "palimpsest: " << text << std::endl;
    if (group) tell_processes(options);
  }
  const auto& stop_signal = poll_stop_signals();
  train::TrainerOptions trainer = make_trainer_options(options);
  trainer.group = group;
  const auto outcome = train::train(*model, *train_loader, validation_loader.get(), trainer, stop_signal);
  if (!leads) return outcome.signal == 0 ? 0 : 128 + outcome.signal;
  if (outcome.signal == 0 || outcome.last_step > 0) folder->keep();
  if (outcome.signal == 0) {
    if (options.run.resume && outcome.steps.empty() && outcome.evaluations.empty()) {
      if (outcome.stopped_early) {
        tell_stopped_early(options, outcome.last_step);
      } else {
        tell_complete(options, outcome.last_step, train_loader->batches());
      }
    }
    return 0;
  }
  const std::string stopped = "palimpsest: stopped by " + signal_name(outcome.signal);
  if (outcome.last_step == 0) {
    std::cerr << stopped << " before the first step; nothing is saved" << std::endl;
  } else {
    std::cerr << stopped << "; checkpoint saved in '" << printable(options.output.folder)
              << "', continue with --resume" << std::endl;
  }
  return 128 + outcome.signal;
}

}  // namespace

int run_train(const Options& options) {
  // The GPU of this process also holds what libtorch allocates without naming a device.
  c10::OptionalDeviceGuard gpu;
  if (const auto device = train::parse_device(options.run.device); options.run.launch && device.is_cuda())
    gpu.reset_device(device);
  const auto group = connect(options);
  return run_together(group.get(), [&] {
    const int status = train_in_folder(options, group.get());
    // A launcher ends all processes as soon as one has left with the status of a signal.
    if (group) group->barrier("the end of the run");
    return status;
  });
}

}  // namespace palimpsest::cli
