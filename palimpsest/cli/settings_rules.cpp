// Rules between settings.
#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/settings.h"
#include "palimpsest/cli/variants.h"
#include "palimpsest/models/registry.h"
#include "palimpsest/nn/activation.h"
#include "palimpsest/nn/dense_block.h"
#include "palimpsest/nn/strategy.h"
#include "palimpsest/train/device.h"
#include "palimpsest/train/loss_scale.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace palimpsest::cli {
namespace {

/// A rule: `owner` has an effect only if the text of `governor` is one of `values`.
struct NeedsText {
  std::string_view owner, governor;
  std::set<std::string> values;
};

const std::vector<NeedsText>& text_rules() {
  static const std::vector<NeedsText> rules{
      {"schedule.power", "schedule.kind", {"poly"}},
      {"schedule.step_epochs", "schedule.kind", {"step"}},
      {"schedule.step_factor", "schedule.kind", {"step", "drops"}},
      {"schedule.final_lr", "schedule.kind", {"linear", "cosine"}},
      {"loss.bootstrap_probability", "loss.kind", {"bootstrap"}},
      {"loss.bootstrap_share", "loss.kind", {"bootstrap"}},
      {"optimizer.momentum", "optimizer.kind", {"sgd"}},
      {"optimizer.nesterov", "optimizer.kind", {"sgd"}},
      {"optimizer.beta1", "optimizer.kind", {"adamw"}},
      {"optimizer.beta2", "optimizer.kind", {"adamw"}},
      {"optimizer.eps", "optimizer.kind", {"adamw"}},
      {"train.patience", "train.keep_best", {"loss", "metric"}},
      {"model.slope", "model.activation", {"leaky_relu", "elu"}},
      {"train.loss_scale", "train.precision", {"f16", "f16-pseudo"}},
      {"data.scale_min", "data.crop_mode", {"window"}},
      {"data.scale_max", "data.crop_mode", {"window"}},
      {"data.area_min", "data.crop_mode", {"area"}},
      {"data.area_max", "data.crop_mode", {"area"}},
      {"data.aspect_max", "data.crop_mode", {"area"}},
      {"data.cache", "data.sampler", {"class_uniform"}},
      {"data.shuffle_buffer", "data.kind", {"webdataset"}},
      {"data.shard_streams", "data.kind", {"webdataset"}},
      {"data.ignore_id", "data.kind", {"generated", "segmentation_folder", "webdataset"}},
      {"data.annotations", "data.kind", {"cityscapes"}},
      {"data.images", "data.kind", {"generated"}},
      {"data.val_images", "data.kind", {"generated"}},
      {"data.height", "data.kind", {"generated"}},
      {"data.width", "data.kind", {"generated"}},
      {"data.data_seed", "data.kind", {"generated"}},
  };
  return rules;
}

/// Returns whether a setting other than its default needs images of bytes.
bool needs_bytes(const Options::Data& data, std::string_view id) {
  if (id == "data.crop_mode") return data.crop_mode != "window";
  if (id == "data.short_side") return data.short_side > 0;
  if (id == "data.eval_short_side") return data.eval_short_side > 0;
  if (id == "data.reduce_jpeg") return data.reduce_jpeg;
  if (id == "data.brightness") return data.brightness > 0;
  if (id == "data.contrast") return data.contrast > 0;
  if (id == "data.saturation") return data.saturation > 0;
  return id == "data.lighting" && data.lighting > 0;
}

bool segments(const Options& options) {
  return models::segments(options.model.name);
}

bool is_dense(const Options& options) {
  return options.model.name.starts_with("densenet");
}

void check_dense_pair(const Options& options, const std::string& strategy) {
  if (!is_dense(options) || options.model.dense_strategy == "auto") return;
  nn::check_dense(nn::parse_dense_strategy(options.model.dense_strategy), nn::parse_strategy(strategy),
                  nn::parse_activation(options.model.activation), options.model.pre_activation);
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::kUsage, message);
}

/// Throws unless a training of a comparison can work; `run` has the variant's settings.
void check_variant(const Options& run, const std::string& variant, const std::string& model_at) {
  const auto strategy = nn::parse_strategy(run.model.strategy);
  const std::string where = "[compare] strategies (--strategies), '" + variant + "': ";
  if (strategy != nn::Strategy::kStandard && !models::normalizes(run.model.name))
    refuse(model_at + " must be a network with normalizations, because strategies are compared; " +
           run.model.name + " has none");
  if (variant.find('+') != std::string::npos && run.model.dense_strategy != "auto" && !is_dense(run))
    refuse(where + run.model.dense_strategy +
           " needs a densely connected network (densenet...), and the model is " + run.model.name);
  if (run.train.precision != "f32" && run.train.dtype == "f64")
    refuse(where + run.train.precision + " needs [train] dtype (--dtype) = f32, got f64");
  const auto activation = nn::parse_activation(run.model.activation);
  nn::check_activation_param(activation, run.model.slope);
  nn::check_pair(strategy, activation);
  check_dense_pair(run, run.model.strategy);
}

bool compares(const Options& options) {
  return options.run.command == Command::kCompare || options.run.command == Command::kDemo;
}

/// Returns the options of each training of a comparison whose variants differ in more than the strategy.
/// Leaves out variants that check_combinations refuses.
std::vector<Options> varied(const Options& options) {
  std::vector<Options> runs;
  const auto& variants = options.compare.strategies;
  if (!compares(options) || std::none_of(variants.begin(), variants.end(), [](const std::string& variant) {
        return variant.find('+') != std::string::npos;
      }))
    return runs;
  for (const std::string& variant : variants) {
    try {
      runs.push_back(with_variant(options, variant));
    } catch (const Error&) {
      continue;
    }
  }
  return runs;
}

/// Does what void_reason does, for one training.
std::string void_reason_of_run(const Options& options, const Setting& s) {
  const std::string id = s.id();
  if (id == "data.ignore_id" && options.data.kind == "webdataset" && !segments(options))
    return "needs a segmentation model (deeplabv3_...) as " + both_names(setting("model.name")) +
           ", which is " + options.model.name;
  for (const NeedsText& rule : text_rules()) {
    if (rule.owner != id) continue;
    const Setting& governor = setting(rule.governor);
    const auto value = std::get<std::string>(get(options, governor));
    if (rule.values.contains(value)) continue;
    std::string wanted;
    for (const auto& v : rule.values) wanted.append(wanted.empty() ? "" : " or ").append(v);
    return std::string("needs ")
        .append(both_names(governor))
        .append(" = ")
        .append(wanted)
        .append(", which is ")
        .append(value);
  }
  // A network predicts photos, whatever its training read; `data check` finds out what a folder holds.
  const bool predicts = options.run.command == Command::kPredict;
  const bool checks = options.run.command == Command::kData;
  const bool in_folder = id == "data.root" || id == "data.train_split" || id == "data.val_split" ||
                         (id == "data.bad_images" && !predicts);
  if (in_folder && options.data.kind == "generated")
    return "needs the layout of a folder as " + both_names(setting("data.kind")) + ", which is generated";
  if (id == "data.bad_images" && !predicts && options.data.bad_images == "skip" &&
      options.data.kind.starts_with("cifar"))
    return "needs a file per image as " + both_names(setting("data.kind")) + ", which is " +
           options.data.kind + ", with thousands of images per file";
  if (id == "optimizer.nesterov" && options.optimizer.nesterov && options.optimizer.momentum == 0)
    return "needs " + both_names(setting("optimizer.momentum")) + " > 0, which is 0";
  if (id == "model.strategy" && !models::normalizes(options.model.name) &&
      nn::parse_strategy(options.model.strategy) != nn::Strategy::kStandard)
    return "needs a network with normalizations as " + both_names(setting("model.name")) + ", which is " +
           options.model.name + ", or to be standard";
  if (((id == "train.sync_norm" && options.train.sync_norm) ||
       (id == "train.freeze_norm" && options.train.freeze_norm)) &&
      !models::normalizes(options.model.name))
    return "needs a network with normalizations as " + both_names(setting("model.name")) + ", which is " +
           options.model.name;
  if (id == "optimizer.decay_norm" && !models::normalizes(options.model.name))
    return "needs a network with normalizations as " + both_names(setting("model.name")) + ", which is " +
           options.model.name;
  if (id == "train.sync_norm" && options.train.sync_norm && options.train.freeze_norm)
    return "needs " + both_names(setting("train.freeze_norm")) + " = false, which is true";
  if (id == "train.keep_best" && options.train.keep_best != "none" && options.output.evaluate_every == 0)
    return "needs " + both_names(setting("output.evaluate_every")) + " > 0, which is 0";
  if ((id == "optimizer.decay_norm" || id == "optimizer.decay_bias") && options.optimizer.weight_decay == 0)
    return "needs " + both_names(setting("optimizer.weight_decay")) + " > 0, which is 0";
  if (id == "model.output_stride" && !segments(options))
    return "needs a segmentation model (deeplabv3_...) as " + both_names(setting("model.name")) +
           ", which is " + options.model.name;
  if (id == "model.dropout" && options.model.dropout >= 0 && !models::drops_out(options.model.name))
    return "needs a network with dropout (densenet..., efficientnet..., mobilenet..., alexnet..., vgg16..., "
           "googlenet..., inception_v3..., wide_resnet..._a2, deeplabv3_wide_resnet...) as " +
           both_names(setting("model.name")) + ", which is " + options.model.name;
  if (id == "model.stochastic_depth" && options.model.stochastic_depth >= 0 &&
      !models::has_stochastic_depth(options.model.name))
    return "needs a network with stochastic depth (efficientnet..., deeplabv3_efficientnet...) as " +
           both_names(setting("model.name")) + ", which is " + options.model.name;
  if (id == "model.pre_activation" && !options.model.pre_activation && !is_dense(options))
    return "needs a densely connected network (densenet...) as " + both_names(setting("model.name")) +
           ", which is " + options.model.name;
  if (id == "model.dense_strategy" && !is_dense(options))
    return "needs a densely connected network (densenet...) as " + both_names(setting("model.name")) +
           ", which is " + options.model.name;
  if (id == "eval.protocol" && options.eval.protocol != "centre" && segments(options))
    return "needs a classification model as " + both_names(setting("model.name")) + ", which is " +
           options.model.name + ", or to be centre";
  if (s.table == "eval" && id != "eval.protocol" && !segments(options))
    return "needs a segmentation model (deeplabv3_...) as " + both_names(setting("model.name")) +
           ", which is " + options.model.name;
  if (id == "eval.stride" && options.eval.window == 0)
    return "needs " + both_names(setting("eval.window")) + " > 0, which is 0";
  if (id == "loss.kind" && options.loss.kind == "bootstrap" && !segments(options))
    return "needs a segmentation model (deeplabv3_...) as " + both_names(setting("model.name")) +
           ", which is " + options.model.name + ", or to be cross_entropy";
  if (id == "model.reset_classifier" && options.model.reset_classifier && options.model.weights.empty())
    return "needs " + both_names(setting("model.weights")) + ", which is not given";
  // A training stores settings for its own images.
  const auto given = options.given.find(id);
  const bool is_flag = given != options.given.end() && given->second.starts_with("--");
  const bool shapes_evaluations = id == "data.eval_crop" || id == "data.eval_short_side" ||
                                  id == "data.resize" || id == "data.reduce_jpeg";
  if (shapes_evaluations && is_flag && predicts && segments(options))
    return "needs a classification model as " + both_names(setting("model.name")) + ", which is " +
           options.model.name + ": it predicts whole images";
  if (id == "data.exif_orientation" && !options.data.has_photos() && !predicts && !checks)
    return "needs a folder of images as " + both_names(setting("data.kind")) + ", which is " +
           options.data.kind;
  if (id == "compare.spend" && options.compare.spend == "crop" && options.data.crop == 0)
    return "needs " + both_names(setting("data.crop")) + " > 0, which is 0";
  if (options.data.resize == "interpolate" && needs_bytes(options.data, id))
    return "needs " + both_names(setting("data.resize")) + " = bilinear or bicubic, which is interpolate";
  if (id == "data.crop_mode" && options.data.crop_mode == "area" && options.data.crop == 0)
    return "needs " + both_names(setting("data.crop")) + " > 0, which is 0";
  if (options.data.crop_mode == "area" && (id == "data.short_side" || id == "data.pad"))
    return "needs " + both_names(setting("data.crop_mode")) + " = window, which is area";
  if (id == "data.reduce_jpeg" && !options.data.has_photos() && !predicts)
    return "needs a folder of images as " + both_names(setting("data.kind")) + ", which is " +
           options.data.kind;
  if ((id == "data.resize" || id == "data.reduce_jpeg") && is_flag && options.data.eval_short_side == 0 &&
      (options.run.command == Command::kEval || options.run.command == Command::kPredict))
    return "needs " + both_names(setting("data.eval_short_side")) + " > 0, which is 0";
  if (id == "data.pad" && options.data.crop == 0)
    return "needs " + both_names(setting("data.crop")) + " > 0, which is 0";
  if (id == "data.prefetch" && options.data.workers == 0)
    return "needs " + both_names(setting("data.workers")) + " > 0, which is 0";
  return "";
}

}  // namespace

std::string both_names(const Setting& s) {
  return s.table.empty() ? "--" + s.flag : "[" + s.table + "] " + s.key + " (--" + s.flag + ")";
}

std::string void_reason(const Options& options, const Setting& s) {
  const auto runs = varied(options);
  if (runs.empty()) return void_reason_of_run(options, s);
  std::string first;
  for (const Options& run : runs) {
    const std::string reason = void_reason_of_run(run, s);
    if (reason.empty()) return "";
    if (first.empty()) first = reason;
  }
  return first + "; no variant of " + both_names(setting("compare.strategies")) + " uses it";
}

std::string resize_of(const Options& options) {
  if (options.data.resize != "auto") return options.data.resize;
  for (const Setting& s : settings())
    if (needs_bytes(options.data, s.id())) return "bilinear";
  return "interpolate";
}

void complete_activation(Options& options) {
  if (!options.given.contains("model.activation"))
    options.model.activation = nn::to_string(models::default_activation(options.model.name));
}

void complete_strategies(Options& options) {
  if (!models::normalizes(options.model.name)) {
    if (!options.given.contains("model.strategy"))
      options.model.strategy = nn::to_string(nn::Strategy::kStandard);
    return;
  }
  const auto activation = nn::parse_activation(options.model.activation);
  const auto complete = [&](const char* id, std::string& strategy) {
    if (options.given.contains(id) || strategy.find('+') != std::string::npos) return;
    if (!nn::fits(nn::parse_strategy(strategy), activation)) strategy = nn::to_string(nn::Strategy::kStoreY);
  };
  complete("model.strategy", options.model.strategy);
  for (auto& strategy : options.compare.strategies) complete("compare.strategies", strategy);
}

void check_combinations(const Options& options, std::initializer_list<const Options*> earlier) {
  for (const auto& [id, where] : options.given) {
    const Setting& s = setting(id);
    const std::string reason = void_reason(options, s);
    if (reason.empty()) continue;
    const bool was_of_use = std::any_of(earlier.begin(), earlier.end(), [&](const Options* before) {
      const auto given = before->given.find(id);
      return given != before->given.end() && given->second == where && void_reason(*before, s).empty();
    });
    if (was_of_use) continue;  // a later source overrode what it depended on
    refuse(std::string(where).append(" has no effect: it ").append(reason));
  }
  const auto given_at = [&](const char* id) {
    const auto it = options.given.find(id);
    return it == options.given.end() ? both_names(setting(id)) : it->second;
  };
  if (segments(options) && options.model.output_stride != 8 && options.model.output_stride != 16)
    refuse(given_at("model.output_stride") + " must be 8 or 16, got " +
           std::to_string(options.model.output_stride));
  for (const auto& [id, probability] : {std::pair("model.dropout", options.model.dropout),
                                        std::pair("model.stochastic_depth", options.model.stochastic_depth)})
    if (probability < 0 && probability != -1)
      refuse(given_at(id) + " must be in [0, 1), or -1 for the network's own, got " + to_toml(probability));
  if (options.data.scale_min > options.data.scale_max)
    refuse(given_at("data.scale_min") + " must be at most [data] scale_max (" +
           to_toml(options.data.scale_max) + "), got " + to_toml(options.data.scale_min));
  if (options.data.area_min > options.data.area_max)
    refuse(given_at("data.area_min") + " must be at most [data] area_max (" + to_toml(options.data.area_max) +
           "), got " + to_toml(options.data.area_min));
  if (options.data.scale_min != options.data.scale_max && options.data.crop == 0 && options.train.batch > 1)
    refuse(given_at("data.scale_max") +
           ": random scales give images of different sizes, which cannot share a batch; "
           "set [data] crop (--crop) > 0");
  if (options.eval.scales.empty()) refuse(given_at("eval.scales") + " must be at least one factor, got none");
  if (options.eval.window > 0 && options.eval.stride > options.eval.window)
    refuse(given_at("eval.stride") + " must be at most " + both_names(setting("eval.window")) +
           ", which is " + std::to_string(options.eval.window) +
           ": pixels between windows would have no class; got " + std::to_string(options.eval.stride));
  if (options.eval.protocol == "ten_crop" && !segments(options) && options.data.eval_crop == 0)
    refuse(given_at("eval.protocol") + " = ten_crop needs " + both_names(setting("data.eval_crop")) +
           " > 0, the side of the crops, which is 0");
  if (options.train.dtype == "f64" && options.train.precision != "f32")
    refuse(given_at("train.precision") + " must be f32 with [train] dtype (--dtype) = f64, got " +
           options.train.precision);
  if (options.train.dtype == "f64" && options.output.histogram_every > 0)
    refuse(given_at("output.histogram_every") +
           " must be 0 with [train] dtype (--dtype) = f64: the histograms are those of f32 and 16-bit "
           "gradients, got " +
           std::to_string(options.output.histogram_every));
  if (!train::parse_device(options.run.device).is_cpu() && options.train.memory_limit > 0)
    refuse(given_at("train.memory_limit") + " has no effect with --device " + options.run.device +
           ": the limit applies to the memory of the processor");
  if (options.train.accumulate > options.train.batch)
    refuse(given_at("train.accumulate") + " must be at most [train] batch (--batch), the images of a step (" +
           std::to_string(options.train.batch) + "), got " + std::to_string(options.train.accumulate));
  const auto& weights = options.loss.class_weights;
  if (!weights.empty() && options.model.classes > 0 &&
      static_cast<int64_t>(weights.size()) != options.model.classes)
    refuse(given_at("loss.class_weights") +
           " must have one number per class: [model] classes (--classes) is " +
           std::to_string(options.model.classes) + ", got " + std::to_string(weights.size()) + " numbers");
  // Given, the id of a class means that this class does not count.
  if (segments(options) && !options.given.contains("data.ignore_id") && options.data.ignore_id >= 0 &&
      options.model.classes > options.data.ignore_id &&
      void_reason(options, setting("data.ignore_id")).empty())
    refuse(given_at("model.classes") + " make " + std::to_string(options.data.ignore_id) +
           " a class, which is the ignore id: its pixels would not count; give fewer classes, or [data] "
           "ignore_id (--ignore-id) to say so; got " +
           std::to_string(options.model.classes));
  train::parse_loss_scale(options.train.loss_scale, given_at("train.loss_scale"));
  const auto activation = nn::parse_activation(options.model.activation);
  nn::check_activation_param(activation, options.model.slope);
  nn::check_pair(nn::parse_strategy(options.model.strategy), activation);
  for (const std::string& variant : options.compare.strategies) {
    const Options run = with_variant(options, variant);
    if (compares(options)) check_variant(run, variant, given_at("model.name"));
  }
  check_dense_pair(options, options.model.strategy);
  const auto& names = options.model.class_names;
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (name.empty()) refuse(given_at("model.class_names") + " must have no empty name");
    if (!seen.insert(name).second)
      refuse(given_at("model.class_names") + " must differ from each other, got '" + shortened(name, 100) +
             "' twice");
  }
  if (!names.empty() && options.model.classes > 0 &&
      static_cast<int64_t>(names.size()) != options.model.classes)
    refuse(given_at("model.class_names") + " must have one name per class: [model] classes (--classes) is " +
           std::to_string(options.model.classes) + ", got " + std::to_string(names.size()) + " names");
  if (options.run.resume && !options.run.resume_if_possible && given_at("model.weights").starts_with("--"))
    refuse("--weights has no effect with --resume: the run in the output folder has its own weights");
  if (options.run.resume_if_possible && options.run.overwrite)
    refuse(
        "--resume-if-possible continues the run in the output folder, --overwrite replaces it: give one of "
        "them");
  if (options.run.resume && options.run.overwrite)
    refuse("--resume continues the run in the output folder, --overwrite replaces it: give one of them");
}

}  // namespace palimpsest::cli
