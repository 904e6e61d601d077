#include "palimpsest/base/printable.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/process.h"
#include "palimpsest/cli/run_folder.h"
#include "palimpsest/cli/weights_file.h"

#include <fmt/format.h>

#include <iostream>

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

}  // namespace

int run_train(const Options& given) {
  Options options = given;
  RunFolder folder(options, Command::kTrain);  // before the data is read: a wrong folder is an error at once
  const Datasets sets = make_datasets(options, Need::kTrainAndValidation);
  const auto model = make_model(options);
  check_task(options, *model);
  if (!options.run.resume) start_from_weights(options, *model);  // a resumed run takes the checkpoint's
  const auto train_loader = make_train_loader(options, sets.train);
  const auto validation_loader = sets.validation ? make_validation_loader(options, sets.validation) : nullptr;

  if (!options.output.quiet) {
    std::cout << to_toml(options, Scope::kMachine) << std::endl;  // the text of config.toml
    for (const std::string& note : options.run.resume_notes)
      std::cerr << "palimpsest: " << printable(note) << std::endl;
  }
  const auto& stop_signal = poll_stop_signals();
  const auto outcome = train::train(*model, *train_loader, validation_loader.get(),
                                    make_trainer_options(options), stop_signal);
  if (outcome.signal == 0 || outcome.last_step > 0) folder.keep();
  if (outcome.signal == 0) {
    if (options.run.resume && outcome.steps.empty() && outcome.evaluations.empty())
      tell_complete(options, outcome.last_step, train_loader->batches());
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

}  // namespace palimpsest::cli
