#pragma once

#include "palimpsest/train/loss.h"
#include "palimpsest/train/optimizer.h"
#include "palimpsest/train/schedule.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace palimpsest::cli {

/// The program's commands, as bits: a setting says with them which commands take it.
enum class Command : unsigned {
  kTrain = 1,
  kEval = 2,
  kPredict = 4,
  kInfo = 8,
  kCompare = 16,
  kDemo = 32,
  kImport = 64,
  kExport = 128,
};

/// Everything that a user can say. A group is a TOML table; a member is a key of it and a flag of the command
/// line (cli/settings.cpp holds the one table that ties the three together, with ranges, units and help).
/// Precedence: these defaults < TOML file < command line.
struct Options {
  struct Model {
    std::string name = "deeplabv3_resnet18";
    int64_t classes = 0;                   ///< 0: as the data set says (image_folder, generated)
    std::vector<std::string> class_names;  ///< empty: as the data set says
    std::string strategy = "inplace_2";
    std::string dense_strategy = "auto";
    std::string activation = "leaky_relu";
    double slope = 0.01;  ///< leaky ReLU's slope or ELU's alpha
    int64_t output_stride = 16;
    std::string weights;  ///< training starts from this file's; empty: from random ones
    bool reset_classifier = false;
  } model;

  struct Data {
    std::string kind = "generated";  ///< "generated", "segmentation_folder", "image_folder"
    std::string root;                ///< folder of the data set; not for generated
    std::string train_split = "train";
    std::string val_split = "val";
    int64_t images = 64;  ///< generated: training images
    int64_t val_images = 16;
    int64_t height = 120;
    int64_t width = 160;
    int64_t data_seed = 1;  ///< generated: the same scenes whatever the training seed
    int64_t crop = 0;       ///< side of the square training crop, pixels; 0: the whole image
    int64_t eval_crop = 0;
    double scale_min = 1, scale_max = 1;
    double flip = 0.5;
    bool pad = true;
    int64_t ignore_id = 255;
    std::array<double, 3> mean{0.485, 0.456, 0.406}, std{0.229, 0.224, 0.225};
    int64_t workers = 1;
    int64_t prefetch = 2;
  } data;

  struct Train {
    int64_t epochs = 1;
    int64_t max_steps = 0;
    int64_t batch = 8;
    int64_t eval_batch = 0;  ///< 0: as batch
    int64_t seed = 1;
    int64_t threads = 0;  ///< 0: one a core
    std::string dtype = "f32";
    std::string precision = "f32";
    std::string loss_scale = "dynamic";  ///< or auto, or a number
    bool channels_last = false;
    int64_t memory_limit = 0;  ///< MiB that tensors may take; 0: no limit
  } train;

  train::OptimizerOptions optimizer;
  train::ScheduleOptions schedule;
  train::LossOptions loss;  ///< its ignore_id follows data.ignore_id (cli/build.h)

  struct Compare {
    std::vector<std::string> strategies{"standard", "inplace_2"};
    int64_t memory = 0;  ///< MiB that the largest batch may take; 0: the first strategy's peak at train.batch
  } compare;

  struct Output {
    std::string folder;  ///< never stored: a run's folder can be moved or copied
    int64_t log_every = 10;
    int64_t checkpoint_every = 0;
    int64_t evaluate_every = 1;
    int64_t histogram_every = 0;
    bool quiet = false;
  } output;

  /// Of the command line alone.
  struct Run {
    /// Decides what to_toml writes. A command that trains several strategies gives each training kTrain and
    /// its model.strategy, so that the checkpoint's configuration says which one it was.
    Command command = Command::kTrain;
    std::string config;               ///< TOML file
    std::string checkpoint;           ///< eval, predict, info, export; import: the file of weights
    std::vector<std::string> inputs;  ///< predict: image files or folders
    std::string file;                 ///< import, export: what is written
    std::string format = "auto";      ///< import: what the weights of normalizations mean
    bool fold = false;                ///< export: normalizations into convolutions
    std::string logits;               ///< predict: file for the raw logits
    std::string device = "cpu";       ///< train, eval, predict: where, not what: never stored
    int64_t size = 224;               ///< info: side of the images, pixels
    bool resume = false;
    bool overwrite = false;
    bool dry_run = false;  ///< print the effective configuration, do nothing
    bool json = false;
  } run;

  /// Where each setting that the user gave came from: "optimizer.lr" -> "--lr" or "camvid.toml:7: [optimizer]
  /// lr".
  std::map<std::string, std::string> given;
};

/// The effective configuration: every setting that has an effect with the others, as TOML that read_toml
/// takes back unchanged. Not in it: the output folder and what is of the command line alone.
std::string to_toml(const Options& options);

/// Sets in `options` what the TOML text says. `name` is the file's name for messages. Throws Error(kUsage)
/// with file, line, key, what is required and what was given: syntax, unknown table or key (with the nearest
/// name), wrong type, value out of range.
void read_toml(Options& options, const std::string& text, const std::string& name);
void read_toml_file(Options& options, const std::filesystem::path& path);

/// Replaces `inplace_2` in the strategies that nobody chose by `store_y` where the activation, such as ReLU,
/// cannot be inverted, and by `standard` where the network normalizes nothing.
void complete_strategies(Options& options);

/// Throws Error(kUsage) for combinations that cannot work, and for a given setting that has no effect with
/// the others. `before` is the state before the command line: a file's setting that only a flag makes void is
/// no error.
void check_combinations(const Options& options, const Options& before);

}  // namespace palimpsest::cli
