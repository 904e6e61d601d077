#pragma once

#include "palimpsest/distributed/launch.h"
#include "palimpsest/train/loss.h"
#include "palimpsest/train/optimizer.h"
#include "palimpsest/train/schedule.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::cli {

/// The commands of the program, as bits: a setting lists its commands with them.
enum class Command : unsigned {
  kTrain = 1,
  kEval = 2,
  kPredict = 4,
  kInfo = 8,
  kCompare = 16,
  kDemo = 32,
  kImport = 64,
  kExport = 128,
  kReproduce = 1024,  ///< becomes kTrain, or kCompare with run.small, once its settings are read
  kData = 256,
  kReport = 512,
};

/// All settings of a user. A group is a TOML table. A member is a key of this table and a flag of the command
/// line. The table in cli/settings.cpp connects member, key and flag, and holds ranges, units and help.
/// Precedence: these defaults < TOML file < command line.
struct Options {
  struct Model {
    std::string name = "deeplabv3_resnet18";
    int64_t classes = 0;                   ///< 0: as in the data set (image_folder, generated)
    std::vector<std::string> class_names;  ///< empty: as in the data set
    std::string strategy = "inplace_2";
    std::string dense_strategy = "auto";
    std::string activation = "leaky_relu";
    bool pre_activation = true;  ///< densenet...: false: normalization and activation follow each convolution
    double dropout = -1;         ///< -1: the network's own
    double stochastic_depth = -1;  ///< of the last block (models/registry.h); -1: the network's own
    double slope = 0.01;           ///< leaky ReLU's slope or ELU's alpha
    int64_t output_stride = 16;
    std::string weights;  ///< a training starts from this file; empty: from random weights
    bool reset_classifier = false;
  } model;

  struct Data {
    /// Also "segmentation_folder", "image_folder", "webdataset", or a kind of data/layouts.h.
    std::string kind = "generated";
    std::string root;  ///< folder of the data set; not for generated
    std::string train_split = "train";
    std::string val_split = "val";
    std::string annotations = "fine";  ///< cityscapes: "fine" or "coarse", of the training images
    int64_t images = 64;               ///< generated: training images
    int64_t val_images = 16;
    int64_t height = 120;
    int64_t width = 160;
    int64_t data_seed = 1;  ///< generated: the scenes do not depend on the training seed
    int64_t crop = 0;       ///< side of the square training crop, pixels; 0: the whole image
    int64_t eval_crop = 0;
    std::string crop_mode = "window";  ///< or "area"
    double scale_min = 1, scale_max = 1;
    double area_min = 0.08, area_max = 1, aspect_max = 4.0 / 3;
    int64_t short_side = 0;  ///< of the scaled training image; 0: as it is
    int64_t eval_short_side = 0;
    std::string resize = "auto";  ///< or "interpolate", "bilinear", "bicubic"
    bool reduce_jpeg = false;
    double flip = 0.5;
    double brightness = 0, contrast = 0, saturation = 0, lighting = 0;
    bool pad = true;
    bool exif_orientation = true;
    /// Whether the images are photos in files of their own, which may have an orientation.
    bool has_photos() const { return kind != "generated" && !kind.starts_with("cifar"); }
    std::string bad_images = "fail";  ///< "fail", "skip"
    int64_t shuffle_buffer = 1000;    ///< webdataset: examples per stream
    int64_t shard_streams = 1;        ///< webdataset: shards read side by side
    int64_t ignore_id = 255;
    std::array<double, 3> mean{0.485, 0.456, 0.406}, std{0.229, 0.224, 0.225};
    std::string sampler = "shuffle";  ///< or "class_uniform"
    std::string cache;                ///< folder of the sampler's index; empty: the output folder
    int64_t workers = 1;
    int64_t prefetch = 2;
  } data;

  struct Train {
    int64_t epochs = 1;
    int64_t max_steps = 0;
    int64_t batch = 8;
    int64_t eval_batch = 0;  ///< 0: the same as batch
    int64_t seed = 1;
    int64_t threads = 0;  ///< 0: one per core
    std::string dtype = "f32";
    std::string precision = "f32";
    std::string loss_scale = "dynamic";  ///< or auto, or a number
    bool channels_last = false;
    int64_t memory_limit = 0;                   ///< MiB that tensors may take; 0: no limit
    bool sync_norm = false;                     ///< normalizations share the statistics of all processes
    std::string gradient_compression = "none";  ///< "none", "bf16", "f16": the type in which gradients travel
    int64_t accumulate = 1;                     ///< parts of a batch, each with its own passes
    double ema_decay = 0;                       ///< of the averages of the parameters; 0: none
    std::vector<std::string> freeze;            ///< layers that stay as they are
    bool freeze_norm = false;                   ///< normalizations keep their running statistics
    std::string keep_best = "none";  ///< "metric", "loss": of best.safetensors; "none": no such file
    int64_t patience = 0;            ///< evaluations without a better one before the end; 0: no end
  } train;

  struct Optimizer : train::OptimizerOptions {
    int64_t lr_for_batch = 0;  ///< images per batch that the learning rates are given for; 0: any number
  } optimizer;
  train::ScheduleOptions schedule;
  train::LossOptions loss;  ///< its ignore_id follows data.ignore_id (cli/factories.h)

  /// The views of an image in eval and predict. A training stores them; its own evaluations have one view.
  struct Eval {
    std::string protocol = "centre";  ///< classification: "centre" or "ten_crop", of data.eval_crop pixels
    std::vector<double> scales{1};    ///< segmentation
    bool flip = false;
    int64_t window = 0;
    int64_t stride = 0;
  } eval;

  struct Compare {
    std::vector<std::string> strategies{"standard", "inplace_2"};
    /// MiB for the largest batch; 0: the first strategy's peak at train.batch, or on a GPU, if nothing is
    /// spent, what is free
    int64_t memory = 0;
    std::string spend = "nothing";  ///< what the saved memory is spent on: "batch" or "crop"
  } compare;

  struct Output {
    std::string folder;  ///< never stored: a run's folder can be moved or copied
    int64_t log_every = 10;
    int64_t checkpoint_every = 0;
    int64_t evaluate_every = 1;
    int64_t histogram_every = 0;
    bool tensorboard = false;
    bool quiet = false;
  } output;

  /// Flags of the command line only.
  struct Run {
    /// to_toml writes the settings of this command. A command that trains several strategies gives each
    /// training kTrain and a model.strategy, so that the configuration in the checkpoint names the strategy.
    Command command = Command::kTrain;
    std::string config;               ///< TOML file
    std::string row;                  ///< reproduce: a row of the papers (cli/paper_rows.h)
    bool small = false;               ///< reproduce: at a size for two cores
    bool list = false;                ///< reproduce: only name the rows
    std::string checkpoint;           ///< eval, predict, info, export; import: the file of weights
    std::vector<std::string> inputs;  ///< predict: image files or folders; report: folders of runs
    std::string action;               ///< data: "check"
    std::string folder;               ///< data: of the data set
    std::string data_kind;            ///< data: the layout; empty: recognized
    bool full = false;                ///< data: decode every file
    std::string file;                 ///< import, export, report: the file to write
    std::string format = "auto";      ///< import: meaning of the weights of normalizations
    bool fold = false;                ///< export: normalizations into convolutions
    bool without_average = false;     ///< eval, predict, export: the weights as trained, not their averages
    std::string logits;               ///< predict: file for the raw logits
    std::string labels;               ///< eval, predict: encoding of the label images; empty: none
    std::string confusion;            ///< eval: file for the confusion matrix
    std::string trained_activation;   ///< eval: in words, if the evaluation has another one
    std::string device = "cpu";       ///< what computes: never stored, because it is no part of a run
    int64_t size = 224;               ///< info: side of the images, pixels
    bool resume = false;
    bool resume_if_possible = false;  ///< sets resume if the output folder has a checkpoint
    /// train --resume: one line per setting that differs from the checkpoint's, or that config.toml wants to
    /// differ.
    std::vector<std::string> resume_notes;
    std::string stored_row;  ///< train --resume: the row of the papers that the checkpoint's run was begun as
    std::string stored_data;   ///< train --resume: Dataset::identity() of the checkpoint's run; "": not known
    bool old_shuffle = false;  ///< train --resume: the checkpoint's run shuffles as older programs did
    bool overwrite = false;
    bool dry_run = false;  ///< print the effective configuration, do nothing
    bool json = false;
    int64_t timeout = 600;  ///< seconds that a process waits for the others
    /// The place of this process among several; nothing for a run of one process (cli/processes.h).
    std::optional<distributed::Launch> launch;
    int64_t threads = 0;  ///< of one of several processes, if train.threads is 0; 0: libtorch's number
  } run;

  /// The origin of each setting that the user gave: "optimizer.lr" -> "--lr" or
  /// "camvid.toml:7: [optimizer] lr".
  std::map<std::string, std::string> given;
};

/// What a setting belongs to, from the narrowest to the widest configuration that holds it.
enum class Scope {
  kRun,      ///< the run: the checkpoint's configuration and config.toml
  kMachine,  ///< this machine, such as the number of threads: config.toml alone
  kTerminal  ///< this call, such as quiet: neither
};

/// Returns the effective configuration as TOML: every setting up to `widest` that has an effect in
/// combination with the others, except the output folder and the settings that are flags only. read_toml
/// reads it back unchanged.
std::string to_toml(const Options& options, Scope widest = Scope::kTerminal);

/// Sets the settings of a TOML text in `options`. `name` is the file's name for messages. Throws
/// Error(kUsage) with file, line, key, requirement and given value, for wrong syntax, an unknown table or key
/// (with the nearest name), a wrong type, a value out of range, nesting deeper than 16, or more than 4 MiB.
void read_toml(Options& options, const std::string& text, const std::string& name);
void read_toml_file(Options& options, const std::filesystem::path& path);

/// Does the same with the settings of the scopes from `narrowest` to `widest`, and ignores all others, after
/// they were checked. The output folder is always ignored.
void read_toml_of(Scope narrowest, Scope widest, Options& options, const std::string& text,
                  const std::string& name);
/// Reads the configuration in a checkpoint, which may come from a stranger. Ignores settings of the machine
/// and those that choose files: [output], [model] weights and, but for eval, the paths of images. A run of an
/// older program, which read the pixels of photos as they are stored, has no [data] exif_orientation: it is
/// off then. Throws Error(kCheckpoint) where read_toml throws Error(kUsage).
void read_stored_toml(Options& options, const std::string& text, const std::string& name);
/// Does the same for the run that --resume continues, with all settings of the run.
void read_resumed_toml(Options& options, const std::string& text, const std::string& name);

/// Replaces the default activation, where the user gave none, by that of the network (SiLU for EfficientNet).
/// Not for options from a stored configuration, which has the activation.
void complete_activation(Options& options);

/// Returns every value of a TOML text as ("table.key", value), in the form of TOML, also those that are no
/// settings of this program. Throws Error(kUsage) for wrong syntax, nesting deeper than 16, or more than 4
/// MiB.
std::vector<std::pair<std::string, std::string>> toml_entries(const std::string& text,
                                                              const std::string& name);

/// Replaces the default strategy `inplace_2`, where the user gave none, by `store_y` if the activation (ReLU,
/// say) cannot be inverted, and by `standard` if the network has no normalization.
void complete_strategies(Options& options);

/// Returns data.resize, or what it is if it is "auto": "bilinear" if a setting that needs images of bytes is
/// in use, else "interpolate".
std::string resize_of(const Options& options);

/// Throws Error(kUsage) for combinations that cannot work, and for a given setting that has no effect in
/// combination with the others. `earlier` holds the options as they were before sources that count more (the
/// flags, or the file of --config over a checkpoint's configuration): it is no error if these make a setting
/// void that had an effect then.
void check_combinations(const Options& options, std::initializer_list<const Options*> earlier);

}  // namespace palimpsest::cli
