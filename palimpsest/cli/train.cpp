#include "palimpsest/base/printable.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/process.h"
#include "palimpsest/cli/run_folder.h"
#include "palimpsest/cli/weights_file.h"

#include <iostream>

namespace palimpsest::cli {

int run_train(const Options& given) {
  Options options = given;
  check_run_folder(options);  // before the data is read, so that a wrong folder is an error at once
  const Datasets sets = make_datasets(options, Need::kTrainAndValidation);
  const auto model = make_model(options);
  check_task(options, *model);
  if (!options.run.resume) start_from_weights(options, *model);  // a resumed run takes the checkpoint's
  const auto train_loader = make_train_loader(options, sets.train);
  const auto validation_loader = sets.validation ? make_validation_loader(options, sets.validation) : nullptr;

  if (!options.output.quiet) std::cout << to_toml(options) << std::endl;
  const auto& stop_signal = install_stop_signals();
  const auto outcome = train::train(*model, *train_loader, validation_loader.get(),
                                    make_trainer_options(options), stop_signal);
  if (outcome.signal == 0) return 0;
  std::cerr << "palimpsest: stopped by signal " << outcome.signal << "; checkpoint saved in '"
            << printable(options.output.folder) << "', continue with --resume" << std::endl;
  return 128 + outcome.signal;
}

}  // namespace palimpsest::cli
