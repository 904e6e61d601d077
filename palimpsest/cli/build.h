#pragma once

#include "palimpsest/cli/options.h"
#include "palimpsest/data/loader.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/train/trainer.h"

#include <atomic>
#include <memory>

namespace palimpsest::cli {

// From options to the objects that a command runs. The order is: make_datasets (completes the options),
// make_model, check_task, make_*_loader, make_trainer_options.

struct Datasets {
  std::shared_ptr<data::Dataset> train;       ///< null when not asked for
  std::shared_ptr<data::Dataset> validation;  ///< null when not asked for, or evaluate_every is 0
};

/// What a command needs of the data.
enum class Need { kTrainAndValidation, kValidation };

/// Opens the data sets and fills in what only they know: model.classes where 0, and model.class_names.
/// Throws Error(kUsage) when the root is missing or the number of classes contradicts, Error(kData) for the
/// rest, class folders that differ between the splits, or from those of the checkpoint, included: their order
/// makes the ids.
Datasets make_datasets(Options& options, Need need);

/// A freshly initialized model from libtorch's generator seeded with train.seed, so that two strategies start
/// from the same weights. Throws Error(kUsage).
std::shared_ptr<nn::Model> make_model(const Options& options);
/// Throws Error(kUsage) when the model labels pixels and the data images, or the other way round.
void check_task(const Options& options, const nn::Model& model);

std::unique_ptr<data::Loader> make_train_loader(const Options& options,
                                                std::shared_ptr<const data::Dataset> dataset);
std::unique_ptr<data::Loader> make_validation_loader(const Options& options,
                                                     std::shared_ptr<const data::Dataset> dataset);

/// Loss options with the data's ignore id.
train::LossOptions make_loss_options(const Options& options);
/// Type, layout and precision of the network's tensors.
train::TensorFormat make_format(const Options& options);
/// Everything that train::train takes; `config` is to_toml(options), `output` is output.folder.
train::TrainerOptions make_trainer_options(const Options& options);

/// Number of threads and memory limit, process-wide. main calls it before a command runs.
void apply_process_options(const Options& options);

/// Installs handlers for SIGINT and SIGTERM that store the signal's number here, for train::train to poll.
/// A second signal ends the program at once. Idempotent.
const std::atomic<int>& install_stop_signals();

}  // namespace palimpsest::cli
