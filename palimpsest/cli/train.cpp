#include "palimpsest/base/printable.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/process.h"
#include "palimpsest/cli/run_folder.h"
#include "palimpsest/cli/weights_file.h"

#include <iostream>

namespace palimpsest::cli {
namespace {

void tell_complete(const Options& options) {
  if (options.output.quiet) return;
  std::cerr << "palimpsest: the run in '" << options.output.folder << "' is complete, nothing was changed: "
            << (options.train.max_steps > 0
                    ? "--max-steps N goes on with N > " + std::to_string(options.train.max_steps) +
                          " or 0, where the epochs allow it"
                    : "--epochs N goes on with N > " + std::to_string(options.train.epochs))
            << std::endl;
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
    for (const std::string& note : options.run.resume_notes) std::cerr << "palimpsest: " << note << std::endl;
  }
  const auto& stop_signal = install_stop_signals();
  const auto outcome = train::train(*model, *train_loader, validation_loader.get(),
                                    make_trainer_options(options), stop_signal);
  folder.keep();
  if (outcome.signal == 0) {
    if (options.run.resume && outcome.steps.empty() && outcome.evaluations.empty()) tell_complete(options);
    return 0;
  }
  std::cerr << "palimpsest: stopped by " << signal_name(outcome.signal) << "; checkpoint saved in '"
            << printable(options.output.folder) << "', continue with --resume" << std::endl;
  return 128 + outcome.signal;
}

}  // namespace palimpsest::cli
