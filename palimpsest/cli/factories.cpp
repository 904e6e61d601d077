#include "palimpsest/cli/factories.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/class_index.h"
#include "palimpsest/cli/resume.h"
#include "palimpsest/data/check.h"
#include "palimpsest/data/class_colors.h"
#include "palimpsest/data/class_uniform.h"
#include "palimpsest/data/files.h"
#include "palimpsest/data/generated/streets.h"
#include "palimpsest/data/image_folder.h"
#include "palimpsest/data/layouts.h"
#include "palimpsest/data/segmentation_folder.h"
#include "palimpsest/data/webdataset.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/models/registry.h"
#include "palimpsest/nn/activation.h"
#include "palimpsest/nn/strategy.h"
#include "palimpsest/train/checkpoint.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>

namespace palimpsest::cli {
namespace {

data::TransformOptions transform(const Options& options, bool training) {
  const Options::Data& d = options.data;
  data::TransformOptions t;
  t.training = training;
  // The evaluation itself cuts ten crops out of the whole image.
  const bool crops_later = options.run.command == Command::kEval && options.eval.protocol == "ten_crop";
  t.crop = training ? d.crop : crops_later ? 0 : d.eval_crop;
  t.scale_min = training ? d.scale_min : 1;
  t.scale_max = training ? d.scale_max : 1;
  t.short_side = training ? d.short_side : d.eval_short_side;
  t.area_crop = training && d.crop_mode == "area";
  t.area_min = d.area_min;
  t.area_max = d.area_max;
  t.aspect_max = d.aspect_max;
  const std::string resize = resize_of(options);
  t.resampling = resize == "bilinear"  ? data::Resampling::kBilinear
                 : resize == "bicubic" ? data::Resampling::kBicubic
                                       : data::Resampling::kInterpolate;
  t.reduce_jpeg = d.reduce_jpeg;
  if (training) t.colors = {d.brightness, d.contrast, d.saturation, d.lighting};
  t.flip_probability = training ? d.flip : 0;
  t.pad = d.pad;
  t.ignore_id = d.ignore_id;
  t.exif_orientation = d.exif_orientation;
  t.mean = d.mean;
  t.std = d.std;
  return t;
}

/// Returns whether the data has one label per pixel. The shards of a webdataset may have labels of both
/// kinds: the network decides which ones are read.
bool labels_pixels(const Options& options) {
  if (options.data.kind == "webdataset") return models::segments(options.model.name);
  const data::Layout* layout = data::find_layout(options.data.kind);
  return layout ? layout->labels_pixels : options.data.kind != "image_folder";
}

/// Throws Error(kUsage) unless model and data agree on whether pixels or images have labels.
void check_task(const Options& options) {
  const bool pixels = labels_pixels(options);
  if (models::segments(options.model.name) == pixels) return;
  throw Error(ErrorKind::kUsage,
              "[model] name (--model) must be " +
                  std::string(pixels ? "a segmentation" : "a classification") + " model for [data] kind = " +
                  options.data.kind + ", which has one label per " + (pixels ? "pixel" : "image") + "; got " +
                  options.model.name + " (try " + (pixels ? "deeplabv3_resnet18" : "resnet18") + ")");
}

std::shared_ptr<data::Dataset> open_kind(const Options& options, bool training) {
  const Options::Data& d = options.data;
  const auto t = transform(options, training);
  if (d.kind == "generated") {
    // The next seed gives another town: no validation scene occurs in training.
    const auto seed = static_cast<uint64_t>(d.data_seed) + (training ? 0 : 1);
    return data::generated::streets(training ? d.images : d.val_images, d.height, d.width, seed, t);
  }
  if (d.root.empty())
    throw Error(ErrorKind::kUsage,
                "[data] kind = " + d.kind + " needs the folder of the data set: give --data-root");
  const std::string& split = training ? d.train_split : d.val_split;
  const bool skip_bad = d.bad_images == "skip";
  if (d.kind == "image_folder") return data::image_folder(d.root, split, t);
  if (const data::Layout* layout = data::find_layout(d.kind))
    return data::open_layout(*layout, d.root, split, training ? d.annotations : "fine", t, skip_bad);
  int64_t classes = options.model.classes;
  if (classes == 0) classes = static_cast<int64_t>(data::read_class_names(d.root).size());
  if (classes == 0)
    throw Error(ErrorKind::kUsage,
                "[data] kind = " + d.kind +
                    " needs the number of classes: give [model] classes (--classes), or a name per "
                    "line in '" +
                    (std::filesystem::path(d.root) / "classes.txt").string() + "'");
  if (d.kind == "webdataset")
    return data::webdataset(d.root, split,
                            {.classes = classes,
                             .labels_pixels = labels_pixels(options),
                             .shuffle_buffer = d.shuffle_buffer,
                             .streams = d.shard_streams,
                             .skip_bad = skip_bad},
                            t);
  return data::segmentation_folder(d.root, split, classes, t, skip_bad);
}

/// Opens the data set. An error says if the folder has another layout than [data] kind.
std::shared_ptr<data::Dataset> open(const Options& options, bool training) {
  try {
    return open_kind(options, training);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData || options.data.root.empty()) throw;
    const std::string kind = data::recognized_kind(options.data.root);
    if (!data::find_layout(kind) || kind == options.data.kind) throw;
    throw Error(ErrorKind::kData,
                std::string(error.what()) + ". The folder looks like " + kind + ": give --data " + kind);
  }
}

void complete_classes(Options& options, const data::Dataset& dataset) {
  const auto& names = dataset.class_names();
  const auto count = static_cast<int64_t>(names.size());
  if (options.model.classes == 0) options.model.classes = count;
  data::check_class_count(options.model.classes, count,
                          options.data.kind + (options.data.root.empty() ? "" : " ") + options.data.root);
  if (options.model.class_names.empty()) options.model.class_names = names;
  if (static_cast<int64_t>(options.model.class_names.size()) != count)
    throw Error(ErrorKind::kUsage, "[model] class_names (--class-names) must have " + std::to_string(count) +
                                       " names, got " + std::to_string(options.model.class_names.size()));
  // Another name for a class is a translation; the name of another class is an error.
  for (std::size_t id = 0; id < names.size(); ++id) {
    const std::string& given = options.model.class_names[id];
    const auto known = std::find(names.begin(), names.end(), given);
    if (given != names[id] && known != names.end())
      throw Error(
          ErrorKind::kUsage,
          fmt::format("[model] class_names (--class-names) has '{}' as class {}, which is class {} of "
                      "the data set ({}); class {} is '{}' there: give the names in that order, or "
                      "leave them out",
                      printable(given), id, known - names.begin(), options.data.kind, id,
                      printable(names[id])));
  }
}

/// Returns `names` without `others`, sorted like the folders of classes.
std::vector<std::string> only_in(std::vector<std::string> names, std::vector<std::string> others) {
  std::sort(names.begin(), names.end());
  std::sort(others.begin(), others.end());
  std::vector<std::string> rest;
  std::set_difference(names.begin(), names.end(), others.begin(), others.end(), std::back_inserter(rest));
  return rest;
}

/// Throws unless the folders are the same: the id of a class is its position among the folders' names.
void check_same_classes(const std::vector<std::string>& a, const std::string& a_is,
                        const std::vector<std::string>& b, const std::string& b_is) {
  if (a == b) return;
  const auto only_a = only_in(a, b), only_b = only_in(b, a);
  std::string message = a_is + " and " + b_is + " must have the same classes in the same order, got " +
                        std::to_string(a.size()) + " and " + std::to_string(b.size());
  if (!only_a.empty()) message += "; only in " + a_is + ": " + listed(only_a);
  if (!only_b.empty()) message += "; only in " + b_is + ": " + listed(only_b);
  if (const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
      only_a.empty() && only_b.empty() && in_a != a.end() && in_b != b.end())
    message += "; class " + std::to_string(in_a - a.begin()) + " is '" + printable(*in_a) + "' in " + a_is +
               " and '" + printable(*in_b) + "' in " + b_is;
  throw Error(ErrorKind::kData, message);
}

/// Throws unless names that a training stored are the names of the folders. Names that the user chose have
/// none in common with the folders.
void check_stored_classes(const Options& options, const data::Dataset& dataset) {
  const auto& stored = options.model.class_names;
  const auto& folders = dataset.class_names();
  if (only_in(folders, stored).size() == folders.size()) return;
  check_same_classes(folders, "the folders of " + options.data.root + "/" + options.data.val_split, stored,
                     "the network's class names");
}

std::unique_ptr<data::Loader> make_loader(const Options& options,
                                          std::shared_ptr<const data::Dataset> dataset, bool training,
                                          std::shared_ptr<const data::Sampler> sampler = nullptr) {
  data::LoaderOptions l;
  l.batch_size = training || options.train.eval_batch == 0 ? options.train.batch : options.train.eval_batch;
  l.workers = options.data.workers;
  l.prefetch = options.data.prefetch;
  l.seed = static_cast<uint64_t>(options.train.seed);
  l.shuffle = training;
  l.sampler = std::move(sampler);
  l.drop_last = training;
  l.split_by_size = !training;
  if (options.data.bad_images == "skip")
    l.bad_examples = training ? data::BadExamples::kReplace : data::BadExamples::kLeaveOut;
  if (options.run.launch) {
    l.rank = options.run.launch->rank;
    l.ranks = options.run.launch->size;
    l.share_whole_batches = !training;
  }
  if (options.run.old_shuffle) l.shuffle_stream = data::ShuffleStream::kOfTheFirstExample;
  l.begin_worker = memory::mark_background_thread;
  return std::make_unique<data::Loader>(std::move(dataset), l);
}

/// Returns the factor of the learning rates: a batch of twice the images takes a step of twice the length.
double learning_rate_factor(const Options& options) {
  if (options.optimizer.lr_for_batch == 0) return 1;
  return static_cast<double>(options.train.batch) / static_cast<double>(options.optimizer.lr_for_batch);
}

distributed::Compression compression_of(const std::string& name) {
  if (name == "bf16") return distributed::Compression::kBF16;
  return name == "f16" ? distributed::Compression::kF16 : distributed::Compression::kNone;
}

void tell_skipped(const std::vector<std::shared_ptr<data::Dataset>>& sets) {
  std::vector<std::filesystem::path> skipped;
  for (const auto& set : sets) {
    if (!set) continue;
    const auto of_set = set->skipped();
    skipped.insert(skipped.end(), of_set.begin(), of_set.end());
  }
  if (!skipped.empty()) std::cerr << "palimpsest: " << data::skipped_text(skipped) << std::endl;
}

void tell_faults(const std::vector<std::shared_ptr<data::Dataset>>& sets) {
  std::vector<std::string> faults;
  for (const auto& set : sets) {
    if (!set) continue;
    const auto of_set = set->faults();
    faults.insert(faults.end(), of_set.begin(), of_set.end());
  }
  if (!faults.empty())
    std::cerr << "palimpsest: left out for " << counted(static_cast<int64_t>(faults.size()), "fault") << ": "
              << printable(listed(faults)) << std::endl;
}

/// Throws what the first evaluation would throw after an epoch: Error(kUsage) for a crop that does not fit, and
/// Error(kData) for a first image that cannot be read; with `skips_bad` only if no image can be read.
void check_readable(const data::Dataset& validation, bool skips_bad) {
  std::string first;
  for (int64_t i = 0; i < validation.size(); ++i) {
    try {
      Random random(0);
      validation.get(i, random);
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kData || !skips_bad) throw;
      if (first.empty()) first = error.what();
    }
  }
  throw Error(ErrorKind::kData, fmt::format("none of the {} validation images can be read; the first one: {}",
                                            validation.size(), first));
}

}  // namespace

Datasets make_datasets(Options& options, Need need) {
  check_task(options);
  Datasets sets;
  if (need == Need::kTrainAndValidation) sets.train = open(options, true);
  if (need == Need::kValidation || options.output.evaluate_every > 0) sets.validation = open(options, false);
  if (options.data.kind == "image_folder" || options.data.kind == "imagenet") {
    const auto folder = [&](const std::string& split) { return options.data.root + "/" + split; };
    if (sets.train && sets.validation)
      check_same_classes(sets.train->class_names(), folder(options.data.train_split),
                         sets.validation->class_names(), folder(options.data.val_split));
    if (!sets.train) check_stored_classes(options, *sets.validation);
  }
  for (const auto& set : {sets.train, sets.validation})
    if (set) complete_classes(options, *set);
  if (!options.output.quiet) {
    tell_skipped({sets.train, sets.validation});
    tell_faults({sets.train, sets.validation});
  }
  if (sets.train && sets.train->size() < options.train.batch)
    throw Error(ErrorKind::kUsage, "[train] batch (--batch) must be at most the number of training images (" +
                                       std::to_string(sets.train->size()) + "), got " +
                                       std::to_string(options.train.batch));
  if (sets.validation && need == Need::kTrainAndValidation)
    check_readable(*sets.validation, options.data.bad_images == "skip");
  if (sets.train && options.model.classes == 1 && !options.output.quiet)
    std::cerr << "palimpsest: the data has one class: every network is right, and there is nothing to learn"
              << std::endl;
  if (sets.train && options.data.sampler == "class_uniform") {
    // The training looks at the data, too, but only after its index has replaced that of the run's data.
    if (options.run.resume)
      train::require_same_data(std::filesystem::path(options.output.folder) / train::kCheckpointFile,
                               options.run.stored_data, sets.train->identity());
    sets.sampler = data::class_uniform_sampler(class_index(options, *sets.train));
  }
  return sets;
}

std::shared_ptr<nn::Model> make_model(const Options& options, const std::string& group) {
  const Options::Model& m = options.model;
  models::ModelOptions model_options;
  model_options.classes = m.classes > 0 ? m.classes : model_options.classes;
  model_options.strategy = nn::parse_strategy(m.strategy);
  model_options.activation = nn::parse_activation(m.activation);
  model_options.activation_param = m.slope;
  model_options.output_stride = m.output_stride;
  model_options.pre_activation = m.pre_activation;
  if (m.dropout >= 0) model_options.dropout = m.dropout;
  if (m.stochastic_depth >= 0) model_options.stochastic_depth = m.stochastic_depth;
  model_options.group = group;
  if (m.dense_strategy != "auto") model_options.dense_strategy = nn::parse_dense_strategy(m.dense_strategy);
  torch::manual_seed(static_cast<uint64_t>(options.train.seed));
  return models::make(m.name, model_options);
}

data::TransformOptions evaluation_transform(const Options& options) {
  return transform(options, /*training=*/false);
}

std::unique_ptr<data::Loader> make_train_loader(const Options& options, const Datasets& sets) {
  return make_loader(options, sets.train, true, sets.sampler);
}

std::unique_ptr<data::Loader> make_validation_loader(const Options& options,
                                                     std::shared_ptr<const data::Dataset> dataset) {
  return make_loader(options, std::move(dataset), false);
}

train::OptimizerOptions make_optimizer_options(const Options& options) {
  train::OptimizerOptions optimizer = options.optimizer;
  if (optimizer.kind != "sgd") optimizer.nesterov = false;
  return optimizer;
}

train::LossOptions make_loss_options(const Options& options) {
  train::LossOptions loss = options.loss;
  loss.ignore_id = options.data.ignore_id;
  return loss;
}

train::TensorFormat make_format(const Options& options) {
  return train::TensorFormat::parse(options.train.dtype, options.train.channels_last, options.train.precision,
                                    options.run.device);
}

train::ViewOptions make_views(const Options& options) {
  const Options::Eval& e = options.eval;
  return {.scales = e.scales, .flip = e.flip, .window = e.window, .stride = e.stride};
}

train::TrainerOptions make_trainer_options(const Options& options) {
  train::TrainerOptions t;
  t.epochs = options.train.epochs;
  t.max_steps = options.train.max_steps;
  t.seed = static_cast<uint64_t>(options.train.seed);
  t.dtype = options.train.dtype;
  t.device = options.run.device;
  t.channels_last = options.train.channels_last;
  t.precision = options.train.precision;
  t.loss_scale = options.train.loss_scale;
  t.accumulate = options.train.accumulate;
  t.ema_decay = options.train.ema_decay;
  t.freeze = options.train.freeze;
  t.freeze_norm = options.train.freeze_norm;
  t.keep_best = options.train.keep_best;
  t.patience = options.train.patience;
  t.optimizer = make_optimizer_options(options);
  t.schedule = options.schedule;
  t.optimizer.lr *= learning_rate_factor(options);
  t.schedule.final_lr *= learning_rate_factor(options);
  constexpr double kMost = 1e30;  // as without lr_for_batch
  if (std::max(t.optimizer.lr, t.schedule.final_lr) > kMost)
    throw Error(ErrorKind::kUsage,
                fmt::format("[optimizer] lr (--lr) and [schedule] final_lr (--final-lr) must be at most {:g} "
                            "after they were multiplied by batch / lr_for_batch, got {:g} and {:g}",
                            kMost, t.optimizer.lr, t.schedule.final_lr));
  t.gradient_compression = compression_of(options.train.gradient_compression);
  t.loss = make_loss_options(options);
  t.output = options.output.folder;
  t.log_every = options.output.log_every;
  t.checkpoint_every = options.output.checkpoint_every;
  t.evaluate_every = options.output.evaluate_every;
  t.histogram_every = options.output.histogram_every;
  t.tensorboard = options.output.tensorboard;
  t.report.class_names = options.model.class_names;
  t.report.class_colors = data::class_colors(options.data.kind, options.model.classes);
  t.report.mean = options.data.mean;
  t.report.std = options.data.std;
  t.resume = options.run.resume;
  t.config = to_toml(options, Scope::kRun);
  t.config_file = to_toml(options, Scope::kMachine);
  t.metadata = {{"model", options.model.name}, {"strategy", options.model.strategy}};
  if (options.model.name.starts_with("densenet")) t.metadata["dense_strategy"] = options.model.dense_strategy;
  // `train --resume` of a row's run leaves it one.
  const std::string& row =
      options.run.row.empty() || options.run.small ? options.run.stored_row : options.run.row;
  if (!row.empty()) t.metadata[kRowKey] = row;
  t.quiet = options.output.quiet;
  return t;
}

std::string learning_rate_text(const Options& options) {
  if (options.optimizer.lr_for_batch == 0) return "";
  const double lr = options.optimizer.lr, factor = learning_rate_factor(options);
  std::string text = fmt::format("lr {:g} for {} images -> {:g} for {}", lr, options.optimizer.lr_for_batch,
                                 lr * factor, options.train.batch);
  if (options.schedule.final_lr > 0)
    text +=
        fmt::format("; final_lr {:g} -> {:g}", options.schedule.final_lr, options.schedule.final_lr * factor);
  return text;
}

}  // namespace palimpsest::cli
