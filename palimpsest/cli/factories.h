#pragma once

#include "palimpsest/cli/options.h"
#include "palimpsest/data/loader.h"
#include "palimpsest/data/transforms.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/train/tensor_format.h"
#include "palimpsest/train/trainer.h"
#include "palimpsest/train/views.h"

#include <memory>
#include <string>

// Functions that make the objects of a command from its options. Call them in this order: make_datasets
// (completes the options), make_model, make_*_loader, make_trainer_options.
namespace palimpsest::cli {

struct Datasets {
  std::shared_ptr<data::Dataset> train;          ///< null if it is not needed
  std::shared_ptr<data::Dataset> validation;     ///< null if it is not needed, or if evaluate_every is 0
  std::shared_ptr<const data::Sampler> sampler;  ///< of the training; null for data.sampler = shuffle
};

/// The data sets that a command needs.
enum class Need { kTrainAndValidation, kValidation };

/// Opens the data sets and completes the options that depend on them: model.classes if it is 0, and
/// model.class_names. Throws Error(kUsage) unless model and data agree on whether pixels or images have labels, if
/// the root is missing, or if the number of classes contradicts the data, and Error(kData) for anything else. Class folders must be the same in both splits and in the
/// checkpoint: their order defines the class ids. The sampler's index of classes is read from its file, or
/// built and written there by rank 0 (cli/class_index.h). Unless quiet, standard error counts the files that are no
/// images, and the faults for which examples are left out, and names the first ones.
Datasets make_datasets(Options& options, Need need);

/// Makes a model with random weights. libtorch's generator is seeded with train.seed first, so two strategies
/// start from the same weights. `group` names the process group whose ranks share the statistics of
/// normalizations; "": none. Throws Error(kUsage) as models::make does.
std::shared_ptr<nn::Model> make_model(const Options& options, const std::string& group = "");

// The loaders yield the share of run.launch, if it is set.
std::unique_ptr<data::Loader> make_train_loader(const Options& options, const Datasets& sets);
std::unique_ptr<data::Loader> make_validation_loader(const Options& options,
                                                     std::shared_ptr<const data::Dataset> dataset);

/// Returns what evaluations do to an image: the short side and the crop from the middle. With ten crops, which
/// `eval` cuts itself, the whole scaled image.
data::TransformOptions evaluation_transform(const Options& options);

/// Returns the optimizer's options, without Nesterov's momentum for AdamW: a flag chose it over a file's SGD.
train::OptimizerOptions make_optimizer_options(const Options& options);
/// Returns the loss options with the ignore id of the data.
train::LossOptions make_loss_options(const Options& options);
/// Returns dtype, layout, device and precision of the network's tensors.
train::TensorFormat make_format(const Options& options);
/// Returns the views of an image in eval and predict.
train::ViewOptions make_views(const Options& options);
/// Returns the options of train::train; `config` and `config_file` are to_toml(options, ...),
/// `output` is output.folder. The learning rates are scaled to the batch (optimizer.lr_for_batch). `group` is
/// null.
train::TrainerOptions make_trainer_options(const Options& options);

/// Returns "lr 0.1 for 256 images -> 0.4 for 1024", or "" if optimizer.lr_for_batch is 0.
std::string learning_rate_text(const Options& options);

}  // namespace palimpsest::cli
