#include "palimpsest/cli/settings.h"

#include "palimpsest/amp/precision.h"
#include "palimpsest/base/error.h"
#include "palimpsest/cli/variants.h"
#include "palimpsest/data/check.h"
#include "palimpsest/data/class_set.h"
#include "palimpsest/data/layouts.h"
#include "palimpsest/models/registry.h"
#include "palimpsest/models/weights.h"
#include "palimpsest/nn/activation.h"
#include "palimpsest/nn/dense_strategy.h"
#include "palimpsest/nn/strategy.h"
#include "palimpsest/train/best.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>

namespace palimpsest::cli {
namespace {

constexpr unsigned operator|(Command a, Command b) {
  return static_cast<unsigned>(a) | static_cast<unsigned>(b);
}
constexpr unsigned operator|(unsigned a, Command b) {
  return a | static_cast<unsigned>(b);
}

constexpr unsigned kTraining = Command::kTrain | Command::kCompare | Command::kDemo;
constexpr unsigned kOneStrategy = static_cast<unsigned>(Command::kTrain);
constexpr unsigned kReadsData = kTraining | Command::kEval;
constexpr unsigned kMakesModel = kTraining | Command::kInfo;
constexpr unsigned kAll = kReadsData | Command::kPredict | Command::kInfo;
constexpr unsigned kStartsTraining = Command::kTrain | Command::kCompare;
constexpr unsigned kNamesModel = kMakesModel | Command::kImport;
constexpr unsigned kWritesFile = Command::kImport | Command::kExport | Command::kReport;
constexpr unsigned kWritesWeights = Command::kImport | Command::kExport;

constexpr unsigned kLabelsImages = Command::kEval | Command::kPredict;
constexpr unsigned kStoresViews = kLabelsImages | Command::kTrain;

constexpr Range kAny{};
constexpr Range kPositive{.low = 0, .above = true};
constexpr Range kNotNegative{.low = 0};
// With a layer's factor of at most 1e8 it is an f32.
constexpr Range kRate{.low = 0, .high = 1e30, .above = true};
constexpr Range kRateOrNone{.low = 0, .high = 1e30};
constexpr Range kColorMean{.low = -1e6, .high = 1e6};
constexpr Range kColorSpread{.low = 1e-6, .high = 1e6};
constexpr Range kOneOrMore{.low = 1};
constexpr Range kViewScale{.low = 0, .high = 4, .above = true};
constexpr Range kShare{.low = 0, .high = 1};
constexpr Range kDropout{.low = -1, .high = 1, .below = true};
constexpr Range kBelowOne{.low = 0, .high = 1, .below = true};
constexpr Range kPositiveShare{.low = 0, .high = 1, .above = true};
constexpr Range kStride{.low = 8, .high = 16};
constexpr Range kAtLeast16{.low = 16};
constexpr Range kByte{.low = 0, .high = 255};
constexpr Range kCrop{.low = 0, .high = 16384};  // 2^28 pixels, as for an image made larger
constexpr Range kScale{.low = 0.01, .high = 100};
constexpr Range kAspect{.low = 1, .high = 100};
constexpr Range kLighting{.low = 0, .high = 10};
constexpr Range kGenerated{.low = 1, .high = 1e7};
constexpr Range kClasses{.low = 0, .high = 1e6};
constexpr Range kWorkers{.low = 0, .high = 256};
constexpr Range kShuffleBuffer{.low = 1, .high = 1e9};
constexpr Range kStreams{.low = 1, .high = 1e5};
constexpr Range kThreads{.low = 0, .high = 1024};
constexpr Range kMemoryMiB{.low = 0, .high = 1 << 30};  // the product with 2^20 is far below 2^63
constexpr Range kTimeout{.low = 1, .high = 1e6};
constexpr Range kImageSide{.low = 16, .high = 8192};

std::vector<std::string> data_kinds() {
  std::vector<std::string> kinds{"generated", "segmentation_folder", "image_folder", "webdataset"};
  for (const data::Layout& layout : data::published_layouts()) kinds.push_back(layout.kind);
  return kinds;
}
std::vector<std::string> annotations() {
  return {"fine", "coarse"};
}
std::vector<std::string> crop_modes() {
  return {"window", "area"};
}
std::vector<std::string> resizes() {
  return {"auto", "interpolate", "bilinear", "bicubic"};
}
std::vector<std::string> samplers() {
  return {"shuffle", "class_uniform"};
}
std::vector<std::string> bad_image_policies() {
  return {"fail", "skip"};
}
std::vector<std::string> protocols() {
  return {"centre", "ten_crop"};
}
std::vector<std::string> label_encodings() {
  return {"train", "official"};
}
bool is_class_set(const std::string& name) {
  return data::class_set(name) != nullptr;
}
std::vector<std::string> dtypes() {
  return {"f32", "f64"};
}
std::vector<std::string> gradient_compressions() {
  return {"none", "bf16", "f16"};
}
std::vector<std::string> dense_strategies() {
  auto names = nn::dense_strategy_names();
  names.insert(names.begin(), "auto");
  return names;
}
/// Also accepts the old names of strategies, which the help does not list.
bool is_strategy(const std::string& name) {
  try {
    nn::parse_strategy(name);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// A lambda without captures converts to the one alternative of Field that has its return type.
#define PALIMPSEST_FIELD(member) [](Options& o) -> decltype((o.member)) { return o.member; }

std::vector<Setting> make_settings() {
  return {
      {"model", "name", "model", "<name>", "network", kNamesModel, PALIMPSEST_FIELD(model.name), kAny,
       models::names, models::is_name},
      {"model", "classes", "classes", "<count>",
       "number of classes; 0: as in the data set (import: in the file)", kNamesModel | Command::kData,
       PALIMPSEST_FIELD(model.classes), kClasses},
      {"model", "class_names", "class-names", "<name,name,...>",
       "names of the classes; empty: as in the data set", kReadsData | Command::kImport,
       PALIMPSEST_FIELD(model.class_names)},
      {"model", "strategy", "strategy", "<name>", "how a block spends memory; gradients are the same",
       kOneStrategy, PALIMPSEST_FIELD(model.strategy), kAny, nn::strategy_names, is_strategy},
      {"model", "dense_strategy", "dense-strategy", "<name>",
       "how a block of a densenet spends memory; auto: chosen by the strategy", kMakesModel,
       PALIMPSEST_FIELD(model.dense_strategy), kAny, dense_strategies},
      {"model", "activation", "activation", "<name>", "activation after every normalization",
       kNamesModel | Command::kEval, PALIMPSEST_FIELD(model.activation), kAny, nn::activation_names},
      {"model", "slope", "slope", "<factor>", "leaky ReLU's slope below zero, or ELU's alpha; 0: ReLU",
       kNamesModel | Command::kEval, PALIMPSEST_FIELD(model.slope), kNotNegative},
      {"model", "pre_activation", "pre-activation", "",
       "densenet: normalize and activate before each convolution; otherwise after it", kNamesModel,
       PALIMPSEST_FIELD(model.pre_activation)},
      {"model", "dropout", "dropout", "<probability>",
       "share of values that dropout sets to zero; -1: the network's own", kNamesModel,
       PALIMPSEST_FIELD(model.dropout), kDropout},
      {"model", "stochastic_depth", "stochastic-depth", "<probability>",
       "efficientnet: how likely a training step skips the last block; earlier blocks less; -1: the "
       "network's own",
       kNamesModel, PALIMPSEST_FIELD(model.stochastic_depth), kDropout},
      {"model", "output_stride", "output-stride", "<pixels>",
       "pixels per feature of a segmentation model, 8 or 16", kNamesModel,
       PALIMPSEST_FIELD(model.output_stride), kStride},
      {"model", "weights", "weights", "<file>",
       "start from the weights in this file of import or export; empty: from random weights", kStartsTraining,
       PALIMPSEST_FIELD(model.weights)},
      {"model", "reset_classifier", "reset-classifier", "",
       "start with a random classifier, for other classes than the weights have", kStartsTraining,
       PALIMPSEST_FIELD(model.reset_classifier)},

      {"data", "kind", "data", "<kind>", "generated scenes, or the layout of the images", kReadsData,
       PALIMPSEST_FIELD(data.kind), kAny, data_kinds},
      {"data", "root", "data-root", "<folder>", "folder of the data set", kReadsData,
       PALIMPSEST_FIELD(data.root)},
      {"data", "train_split", "train-split", "<name>", "folder below the root with the training images",
       kTraining, PALIMPSEST_FIELD(data.train_split)},
      {"data", "val_split", "val-split", "<name>", "folder below the root with the validation images",
       kReadsData, PALIMPSEST_FIELD(data.val_split)},
      {"data", "annotations", "annotations", "<name>",
       "labels of the training images of cityscapes; evaluations read the fine ones", kTraining,
       PALIMPSEST_FIELD(data.annotations), kAny, annotations},
      {"data", "images", "images", "<images>", "generated training images", kTraining,
       PALIMPSEST_FIELD(data.images), kGenerated},
      {"data", "val_images", "val-images", "<images>", "generated validation images", kReadsData,
       PALIMPSEST_FIELD(data.val_images), kGenerated},
      {"data", "height", "height", "<pixels>", "height of generated images", kReadsData,
       PALIMPSEST_FIELD(data.height), kAtLeast16},
      {"data", "width", "width", "<pixels>", "width of generated images", kReadsData,
       PALIMPSEST_FIELD(data.width), kAtLeast16},
      {"data", "data_seed", "data-seed", "<number>", "seed of the generated images", kReadsData,
       PALIMPSEST_FIELD(data.data_seed), kNotNegative},
      {"data", "crop", "crop", "<pixels>", "side of the square training crop; 0: the whole image", kTraining,
       PALIMPSEST_FIELD(data.crop), kCrop},
      {"data", "eval_crop", "eval-crop", "<pixels>",
       "side of the square centre crop in evaluations; 0: the whole image", kReadsData | Command::kPredict,
       PALIMPSEST_FIELD(data.eval_crop), kCrop},
      {"data", "crop_mode", "crop-mode", "<name>",
       "training crop: a window of the scaled image, or a part of random area and aspect, scaled to the crop",
       kTraining, PALIMPSEST_FIELD(data.crop_mode), kAny, crop_modes},
      {"data", "scale_min", "scale-min", "<factor>", "smallest random scale before the crop", kTraining,
       PALIMPSEST_FIELD(data.scale_min), kScale},
      {"data", "scale_max", "scale-max", "<factor>", "largest random scale before the crop", kTraining,
       PALIMPSEST_FIELD(data.scale_max), kScale},
      {"data", "area_min", "area-min", "<share>", "area: smallest share of the image's area", kTraining,
       PALIMPSEST_FIELD(data.area_min), kPositiveShare},
      {"data", "area_max", "area-max", "<share>", "area: largest share of the image's area", kTraining,
       PALIMPSEST_FIELD(data.area_max), kPositiveShare},
      {"data", "aspect_max", "aspect-max", "<ratio>", "area: largest ratio of the sides", kTraining,
       PALIMPSEST_FIELD(data.aspect_max), kAspect},
      {"data", "short_side", "short-side", "<pixels>",
       "scale the shorter side of training images to this before the crop; 0: as it is", kTraining,
       PALIMPSEST_FIELD(data.short_side), kCrop},
      {"data", "eval_short_side", "eval-short-side", "<pixels>",
       "scale the shorter side of images to this in evaluations; 0: as it is", kReadsData | Command::kPredict,
       PALIMPSEST_FIELD(data.eval_short_side), kCrop},
      {"data", "resize", "resize", "<name>",
       "how images are scaled; auto: interpolate, but bilinear if another setting needs bytes",
       kReadsData | Command::kPredict, PALIMPSEST_FIELD(data.resize), kAny, resizes},
      {"data", "reduce_jpeg", "reduce-jpeg", "",
       "decode a JPEG image at the smallest eighth of its size that has the pixels of the view",
       kReadsData | Command::kPredict, PALIMPSEST_FIELD(data.reduce_jpeg)},
      {"data", "flip", "flip", "<probability>", "probability of a left-right flip", kTraining,
       PALIMPSEST_FIELD(data.flip), kShare},
      {"data", "brightness", "brightness", "<strength>",
       "the brightness of a training image changes by up to this share", kTraining,
       PALIMPSEST_FIELD(data.brightness), kShare},
      {"data", "contrast", "contrast", "<strength>",
       "the contrast of a training image changes by up to this share", kTraining,
       PALIMPSEST_FIELD(data.contrast), kShare},
      {"data", "saturation", "saturation", "<strength>",
       "the saturation of a training image changes by up to this share", kTraining,
       PALIMPSEST_FIELD(data.saturation), kShare},
      {"data", "lighting", "lighting", "<deviation>",
       "standard deviation of the change of light along the principal colours of ImageNet", kTraining,
       PALIMPSEST_FIELD(data.lighting), kLighting},
      {"data", "pad", "pad", "", "pad an image that is smaller than the crop; otherwise it is an error",
       kTraining, PALIMPSEST_FIELD(data.pad)},
      {"data", "exif_orientation", "exif-orientation", "",
       "turn JPEG images as their Exif data say; labels stay as they are",
       kReadsData | Command::kPredict | Command::kData, PALIMPSEST_FIELD(data.exif_orientation)},
      {"data", "bad_images", "bad-images", "<policy>",
       "fail at an image that cannot be read, or skip and count it", kReadsData | Command::kPredict,
       PALIMPSEST_FIELD(data.bad_images), kAny, bad_image_policies},
      {"data", "shuffle_buffer", "shuffle-buffer", "<examples>",
       "examples of shards that a training draws the next one from", kTraining,
       PALIMPSEST_FIELD(data.shuffle_buffer), kShuffleBuffer},
      {"data", "shard_streams", "shard-streams", "<streams>",
       "parts of a training batch, each from shards of its own", kTraining,
       PALIMPSEST_FIELD(data.shard_streams), kStreams},
      {"data", "ignore_id", "ignore-id", "<id>", "label of pixels without a class",
       kReadsData | Command::kData, PALIMPSEST_FIELD(data.ignore_id), kByte},
      {"data", "mean", "mean", "<r,g,b>", "subtracted from RGB in [0, 1]", kReadsData | Command::kImport,
       PALIMPSEST_FIELD(data.mean), kColorMean},
      {"data", "std", "std", "<r,g,b>", "divides RGB after the mean", kReadsData | Command::kImport,
       PALIMPSEST_FIELD(data.std), kColorSpread},
      {"data", "sampler", "sampler", "<name>",
       "which images an epoch has: each once, or each class equally often", kTraining,
       PALIMPSEST_FIELD(data.sampler), kAny, samplers},
      {"data", "cache", "cache", "<folder>",
       "class_uniform: folder for the index of classes, for several runs; empty: the output folder",
       kTraining, PALIMPSEST_FIELD(data.cache)},
      {"data", "workers", "workers", "<threads>", "threads that read images; 0: the training thread",
       kReadsData, PALIMPSEST_FIELD(data.workers), kWorkers},
      {"data", "prefetch", "prefetch", "<batches>", "batches made ahead", kReadsData,
       PALIMPSEST_FIELD(data.prefetch), kOneOrMore},

      {"train", "epochs", "epochs", "<epochs>", "passes over the training images", kTraining,
       PALIMPSEST_FIELD(train.epochs), kOneOrMore},
      {"train", "max_steps", "max-steps", "<steps>", "stop after this many steps in total; 0: no limit",
       kTraining, PALIMPSEST_FIELD(train.max_steps), kNotNegative},
      {"train", "batch", "batch", "<images>", "images per training step", kReadsData,
       PALIMPSEST_FIELD(train.batch), kOneOrMore},
      {"train", "eval_batch", "eval-batch", "<images>", "images per batch in evaluations; 0: same as --batch",
       kReadsData, PALIMPSEST_FIELD(train.eval_batch), kNotNegative},
      {"train", "seed", "seed", "<number>", "seed of weights, order and augmentation", kMakesModel,
       PALIMPSEST_FIELD(train.seed), kNotNegative},
      {"train", "threads", "threads", "<threads>", "threads that compute; 0: one per core",
       kAll | Command::kData, PALIMPSEST_FIELD(train.threads), kThreads},
      {"train", "dtype", "dtype", "<type>", "type of parameters and images", kAll,
       PALIMPSEST_FIELD(train.dtype), kAny, dtypes},
      {"train", "precision", "precision", "<name>", "precision of the computation; parameters stay f32", kAll,
       PALIMPSEST_FIELD(train.precision), kAny, amp::precision_names},
      {"train", "loss_scale", "loss-scale", "<dynamic, auto or factor>",
       "f16: factor of the loss before the backward pass", kTraining, PALIMPSEST_FIELD(train.loss_scale)},
      {"train", "channels_last", "channels-last", "", "keep images and activations as (N, H, W, C)", kAll,
       PALIMPSEST_FIELD(train.channels_last)},
      {"train", "memory_limit", "memory-limit", "<MiB>",
       "end with exit code 7 if tensors take more memory; 0: no limit", kAll,
       PALIMPSEST_FIELD(train.memory_limit), kMemoryMiB},
      {"train", "sync_norm", "sync-norm", "", "normalize with the statistics of the batch of all processes",
       kOneStrategy, PALIMPSEST_FIELD(train.sync_norm)},
      {"train", "gradient_compression", "gradient-compression", "<type>",
       "type in which processes exchange gradients", kOneStrategy,
       PALIMPSEST_FIELD(train.gradient_compression), kAny, gradient_compressions},
      {"train", "accumulate", "accumulate", "<parts>",
       "parts of a batch, each with its own forward and backward pass: memory of a part, step of the batch",
       kTraining, PALIMPSEST_FIELD(train.accumulate), kOneOrMore},
      {"train", "ema_decay", "ema-decay", "<factor>",
       "decay of the averages of the parameters, which are evaluated; 0: no averages", kTraining,
       PALIMPSEST_FIELD(train.ema_decay), kBelowOne},
      {"train", "freeze", "freeze", "<layer,layer,...>", "layers that stay as they are", kTraining,
       PALIMPSEST_FIELD(train.freeze)},
      {"train", "freeze_norm", "freeze-norm", "",
       "normalize with the running statistics, which stay as they are", kTraining,
       PALIMPSEST_FIELD(train.freeze_norm)},
      {"train", "keep_best", "keep-best", "<name>",
       "what decides which checkpoint is kept as best.safetensors", kTraining,
       PALIMPSEST_FIELD(train.keep_best), kAny, train::best_names},
      {"train", "patience", "patience", "<evaluations>",
       "end after this many evaluations without a better one; 0: never", kTraining,
       PALIMPSEST_FIELD(train.patience), kNotNegative},

      {"optimizer", "kind", "optimizer", "<name>", "how gradients change the parameters", kTraining,
       PALIMPSEST_FIELD(optimizer.kind), kAny, train::optimizer_names},
      {"optimizer", "lr", "lr", "<per step>", "highest learning rate", kTraining,
       PALIMPSEST_FIELD(optimizer.lr), kRate},
      {"optimizer", "lr_for_batch", "lr-for-batch", "<images>",
       "batch that --lr and --final-lr are meant for: both are multiplied by --batch / this number; 0: taken "
       "as given",
       kOneStrategy, PALIMPSEST_FIELD(optimizer.lr_for_batch), kNotNegative},
      {"optimizer", "momentum", "momentum", "<factor>",
       "sgd: share of the last update that is added to the next", kTraining,
       PALIMPSEST_FIELD(optimizer.momentum), kBelowOne},
      {"optimizer", "weight_decay", "weight-decay", "<factor>",
       "sgd: L2 penalty added to the gradient; adamw: share of lr by which parameters shrink", kTraining,
       PALIMPSEST_FIELD(optimizer.weight_decay), kRateOrNone},
      {"optimizer", "nesterov", "nesterov", "", "sgd: use Nesterov's momentum", kTraining,
       PALIMPSEST_FIELD(optimizer.nesterov)},
      {"optimizer", "decay_norm", "decay-norm", "", "apply weight decay to normalization layers too",
       kTraining, PALIMPSEST_FIELD(optimizer.decay_norm)},
      {"optimizer", "decay_bias", "decay-bias", "", "apply weight decay to biases of other layers too",
       kTraining, PALIMPSEST_FIELD(optimizer.decay_bias)},
      {"optimizer", "beta1", "beta1", "<factor>", "adamw: decay of the mean of the gradients", kTraining,
       PALIMPSEST_FIELD(optimizer.beta1), kBelowOne},
      {"optimizer", "beta2", "beta2", "<factor>", "adamw: decay of the mean of the gradients' squares",
       kTraining, PALIMPSEST_FIELD(optimizer.beta2), kBelowOne},
      {"optimizer", "eps", "eps", "<number>", "adamw: added to the root of the mean of squares", kTraining,
       PALIMPSEST_FIELD(optimizer.eps), kPositive},
      {"optimizer", "lr_factors", "lr-factors", "<layer=factor,...>",
       "factors of the learning rate of some layers", kTraining, PALIMPSEST_FIELD(optimizer.lr_factors)},
      {"optimizer", "clip_norm", "clip-norm", "<norm>",
       "largest norm of all gradients together, larger ones are scaled down; 0: any", kTraining,
       PALIMPSEST_FIELD(optimizer.clip_norm), kNotNegative},

      {"schedule", "kind", "schedule", "<name>", "how the learning rate falls", kTraining,
       PALIMPSEST_FIELD(schedule.kind), kAny, train::schedule_names},
      {"schedule", "power", "power", "<exponent>", "poly: lr * (1 - step/steps)^power", kTraining,
       PALIMPSEST_FIELD(schedule.power), kPositive},
      {"schedule", "step_epochs", "step-epochs", "<epochs>", "step: epochs between drops", kTraining,
       PALIMPSEST_FIELD(schedule.step_epochs), kOneOrMore},
      {"schedule", "step_factor", "step-factor", "<factor>", "step, drops: multiplies lr at each drop",
       kTraining, PALIMPSEST_FIELD(schedule.step_factor), kPositive},
      {"schedule", "final_lr", "final-lr", "<per step>", "linear, cosine: learning rate at the end",
       kTraining, PALIMPSEST_FIELD(schedule.final_lr), kRateOrNone},
      {"schedule", "warmup_epochs", "warmup", "<epochs>", "epochs over which the learning rate first rises",
       kTraining, PALIMPSEST_FIELD(schedule.warmup_epochs), kNotNegative},

      {"loss", "kind", "loss", "<name>", "loss of the logits", kReadsData, PALIMPSEST_FIELD(loss.kind), kAny,
       train::loss_names},
      {"loss", "bootstrap_probability", "bootstrap-probability", "<probability>",
       "bootstrap: only pixels whose true class is less probable count", kReadsData,
       PALIMPSEST_FIELD(loss.bootstrap_probability), kPositiveShare},
      {"loss", "bootstrap_share", "bootstrap-share", "<share>",
       "bootstrap: at most this share of an image's valid pixels counts", kReadsData,
       PALIMPSEST_FIELD(loss.bootstrap_share), kPositiveShare},
      {"loss", "label_smoothing", "label-smoothing", "<share>",
       "share of the target that is spread over all classes", kReadsData,
       PALIMPSEST_FIELD(loss.label_smoothing), kBelowOne},
      {"loss", "class_weights", "class-weights", "<number,number,...>",
       "weight of each class in the loss; empty: all are 1", kReadsData, PALIMPSEST_FIELD(loss.class_weights),
       kNotNegative},

      {"eval", "protocol", "protocol", "<name>",
       "classification: the centre of an image, or ten crops of it, of --eval-crop pixels",
       Command::kTrain | Command::kEval, PALIMPSEST_FIELD(eval.protocol), kAny, protocols},
      {"eval", "scales", "eval-scales", "<factor,factor,...>",
       "segmentation: scales of an image whose probabilities are averaged", kStoresViews,
       PALIMPSEST_FIELD(eval.scales), kViewScale},
      {"eval", "flip", "eval-flip", "", "segmentation: average with the mirror image, too", kStoresViews,
       PALIMPSEST_FIELD(eval.flip)},
      {"eval", "window", "window", "<pixels>",
       "segmentation: side of sliding windows over the scaled image; 0: the whole image", kStoresViews,
       PALIMPSEST_FIELD(eval.window), kCrop},
      {"eval", "stride", "window-stride", "<pixels>",
       "pixels between neighbouring windows; 0: two thirds of the window", kStoresViews,
       PALIMPSEST_FIELD(eval.stride), kCrop},

      {"compare", "strategies", "strategies", "<name,name,...>",
       "strategies to compare, or STRATEGY+PRECISION, +DENSE STRATEGY, +ACTIVATION; ratios are to the first "
       "one",
       Command::kCompare | Command::kDemo, PALIMPSEST_FIELD(compare.strategies), kAny, nn::strategy_names,
       begins_with_strategy},
      {"compare", "memory", "memory", "<MiB>",
       "memory limit for the largest batch; 0: the peak of the first strategy, on a GPU what is free",
       Command::kCompare | Command::kDemo, PALIMPSEST_FIELD(compare.memory), kMemoryMiB},
      {"compare", "spend", "spend", "<name>",
       "what the others train on in the same memory: the same data, the largest batch, or the largest crop",
       Command::kCompare | Command::kDemo, PALIMPSEST_FIELD(compare.spend), kAny,
       [] { return std::vector<std::string>{"nothing", "batch", "crop"}; }},

      {"output", "folder", "output", "<folder>", "folder for all files that are written",
       kTraining | kLabelsImages, PALIMPSEST_FIELD(output.folder)},
      {"output", "log_every", "log-every", "<steps>", "steps between progress lines", kTraining,
       PALIMPSEST_FIELD(output.log_every), kOneOrMore},
      {"output", "checkpoint_every", "checkpoint-every", "<steps>",
       "steps between checkpoints; 0: at the end of each epoch", kTraining,
       PALIMPSEST_FIELD(output.checkpoint_every), kNotNegative},
      {"output", "evaluate_every", "evaluate-every", "<epochs>", "epochs between evaluations; 0: never",
       kTraining, PALIMPSEST_FIELD(output.evaluate_every), kNotNegative},
      {"output", "histogram_every", "histogram-every", "<steps>",
       "steps between histograms of the gradients' exponents; 0: never", kTraining,
       PALIMPSEST_FIELD(output.histogram_every), kNotNegative},
      {"output", "tensorboard", "tensorboard", "",
       "write events for TensorBoard into the output folder: scalars, pictures, histograms", kTraining,
       PALIMPSEST_FIELD(output.tensorboard)},
      {"output", "quiet", "quiet", "", "show no progress on the terminal", kTraining,
       PALIMPSEST_FIELD(output.quiet)},

      {"", "config", "config", "<file>", "TOML file with settings; flags override it", kAll | kWritesWeights,
       PALIMPSEST_FIELD(run.config)},
      {"", "dry_run", "dry-run", "", "print the effective configuration and stop", kTraining,
       PALIMPSEST_FIELD(run.dry_run)},
      {"", "device", "device", "<cpu, cuda or cuda:N>",
       "device that computes: the processor or an NVIDIA GPU",
       kTraining | Command::kEval | Command::kPredict | Command::kInfo, PALIMPSEST_FIELD(run.device)},
      {"", "resume", "resume", "", "continue the run in the output folder bit-exactly", kOneStrategy,
       PALIMPSEST_FIELD(run.resume)},
      {"", "resume_if_possible", "resume-if-possible", "",
       "continue the run in the output folder if it has a checkpoint, else begin it", kOneStrategy,
       PALIMPSEST_FIELD(run.resume_if_possible)},
      {"", "timeout", "timeout", "<seconds>",
       "how long one of several processes waits for the others, 600 if not given",
       Command::kTrain | Command::kEval, PALIMPSEST_FIELD(run.timeout), kTimeout},
      {"", "overwrite", "overwrite", "",
       "replace the run in the output folder, or the files (import, export, predict, eval, report)",
       kTraining | kWritesFile | kLabelsImages, PALIMPSEST_FIELD(run.overwrite)},
      {"", "file", "output", "<file>",
       "the file to write: .safetensors; report: the HTML page, report.html in the first RUN if not given",
       kWritesFile, PALIMPSEST_FIELD(run.file)},
      {"", "format", "format", "<name>", "meaning of the weights of normalizations in the file",
       static_cast<unsigned>(Command::kImport), PALIMPSEST_FIELD(run.format), kAny,
       models::weight_format_names},
      {"", "fold", "fold", "", "move batch normalizations into the convolutions before them, for inference",
       static_cast<unsigned>(Command::kExport), PALIMPSEST_FIELD(run.fold)},
      {"", "without_average", "without-average", "",
       "take the weights as trained, not their averages (train --ema-decay)",
       Command::kEval | Command::kPredict | Command::kExport, PALIMPSEST_FIELD(run.without_average)},
      {"", "logits", "logits", "<file>", "write the raw logits of each image to this .safetensors file",
       static_cast<unsigned>(Command::kPredict), PALIMPSEST_FIELD(run.logits)},
      {"", "labels", "labels", "<encoding>",
       "write the predicted classes of each image to --output as an 8-bit PNG: train ids, the official ids "
       "of the data set, or those of a named one",
       kLabelsImages, PALIMPSEST_FIELD(run.labels), kAny, label_encodings, is_class_set},
      {"", "confusion", "confusion", "<file>",
       "write the confusion matrix to this .csv or .json file, a row per true class",
       static_cast<unsigned>(Command::kEval), PALIMPSEST_FIELD(run.confusion)},
      {"", "json", "json", "", "print the result as one JSON object",
       Command::kEval | Command::kPredict | Command::kInfo | Command::kData, PALIMPSEST_FIELD(run.json)},
      {"", "small", "small", "",
       "compare at a size for two cores, on CamVid or CIFAR-10, instead of training the row",
       static_cast<unsigned>(Command::kReproduce), PALIMPSEST_FIELD(run.small)},
      {"", "list", "list", "", "name all rows and what the papers report, and stop",
       static_cast<unsigned>(Command::kReproduce), PALIMPSEST_FIELD(run.list)},
      {"", "data_kind", "data-kind", "<kind>", "layout of the folder; if not given, it is recognized",
       static_cast<unsigned>(Command::kData), PALIMPSEST_FIELD(run.data_kind), kAny, data::checked_kinds},
      {"", "full", "full", "", "decode every file: sizes, pixels per class, ids without a class",
       static_cast<unsigned>(Command::kData), PALIMPSEST_FIELD(run.full)},
      {"", "size", "size", "<pixels>",
       "side of the images for layers and memory, 224 if not given; info CHECKPOINT lists both only "
       "given",
       static_cast<unsigned>(Command::kInfo), PALIMPSEST_FIELD(run.size), kImageSide},
  };
}

#undef PALIMPSEST_FIELD

bool is_one_of(std::initializer_list<std::string_view> ids, const std::string& id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Scope Setting::scope() const {
  if (is_one_of({"output.folder", "output.quiet"}, id())) return Scope::kTerminal;
  return is_one_of({"data.cache", "data.workers", "data.prefetch", "train.threads", "train.memory_limit",
                    "output.log_every", "output.tensorboard"},
                   id())
             ? Scope::kMachine
             : Scope::kRun;
}

bool Setting::taken_by(Command command) const {
  const unsigned taking = command == Command::kReproduce
                              ? Command::kReproduce | Command::kTrain | Command::kCompare
                              : static_cast<unsigned>(command);
  return (commands & taking) != 0;
}

bool Setting::hides_default() const {
  return table == "eval" || is_one_of({"data.crop_mode",
                                       "data.short_side",
                                       "data.eval_short_side",
                                       "data.resize",
                                       "data.reduce_jpeg",
                                       "data.brightness",
                                       "data.contrast",
                                       "data.saturation",
                                       "data.lighting",
                                       "data.sampler",
                                       "data.cache",
                                       "data.bad_images",
                                       "model.pre_activation",
                                       "model.dropout",
                                       "model.stochastic_depth",
                                       "train.sync_norm",
                                       "train.gradient_compression",
                                       "train.accumulate",
                                       "train.ema_decay",
                                       "train.freeze",
                                       "train.freeze_norm",
                                       "train.keep_best",
                                       "train.patience",
                                       "optimizer.kind",
                                       "optimizer.lr_for_batch",
                                       "optimizer.decay_bias",
                                       "optimizer.beta1",
                                       "optimizer.beta2",
                                       "optimizer.eps",
                                       "optimizer.lr_factors",
                                       "optimizer.clip_norm",
                                       "loss.label_smoothing",
                                       "loss.class_weights",
                                       "output.tensorboard"},
                                      id());
}

std::span<const Setting> settings() {
  static const std::vector<Setting> all = make_settings();
  return all;
}

const Setting& setting(std::string_view id) {
  for (const Setting& s : settings())
    if (s.id() == id) return s;
  throw std::logic_error("no setting '" + std::string(id) + "'");
}

}  // namespace palimpsest::cli
