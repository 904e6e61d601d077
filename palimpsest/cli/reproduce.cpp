#include "palimpsest/cli/reproduce.h"

#include "palimpsest/base/error.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/compare.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/paper_rows.h"
#include "palimpsest/cli/settings.h"
#include "palimpsest/cli/variants.h"
#include "palimpsest/cli/weights_file.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/train/checkpoint.h"
#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

namespace palimpsest::cli {
namespace {

/// Returns what the paper reports for a row, against what, and how the network here differs.
std::string paper_text(const PaperRow& row) {
  std::string text = "  the paper: " + row.paper + "\n";
  if (!row.baseline.empty()) text += "  against:   " + row.baseline + "\n";
  if (!row.differs.empty()) text += "  differs:   " + row.differs + "\n";
  return text;
}

int list_rows() {
  for (const PaperRow& row : paper_rows()) fmt::print("{}\n  {}\n{}", row.name, row.title, paper_text(row));
  return 0;
}

void print_paper(const PaperRow& row) {
  fmt::print("\n{}\n{}", row.title, paper_text(row));
}

/// Returns the flags of the settings in which the training is another one than the row's: "--model, --batch". Where it
/// runs, reads and writes changes nothing, and neither do the classes, which are the data's. A run that was resumed does
/// not know which settings were given: all count.
std::string changed_flags(const Options& options, const PaperRow& row) {
  static const std::set<std::string_view> kSame{
      "data.root",     "data.workers",     "data.prefetch",       "data.cache",
      "model.weights", "model.classes",    "model.class_names",   "model.strategy",
      "train.threads", "train.eval_batch", "train.channels_last", "train.memory_limit"};
  Options recipe;
  recipe.run.row = options.run.row;
  recipe.run.small = options.run.small;
  read_row_recipe(recipe);
  if (options.run.small) recipe.schedule.warmup_epochs = small_warmup(recipe, options.train.epochs);
  complete_activation(recipe);
  // The paper's statistics, each of the part of one of its GPUs (note_statistics).
  if (options.train.accumulate == row.gpus) recipe.train.accumulate = row.gpus;
  std::string flags;
  for (const Setting& s : settings()) {
    const bool counts = s.taken_by(Command::kTrain) || (options.run.small && s.table == "compare");
    if (s.table.empty() || s.table == "output" || kSame.contains(s.id()) || !counts ||
        get(options, s) == get(recipe, s))
      continue;
    flags.append(flags.empty() ? "--" : ", --").append(s.flag);
  }
  return flags;
}

/// Says where one process normalizes over more images than each of the paper's GPUs did.
void note_statistics(const Options& options, const PaperRow& row) {
  if (options.train.batch < 2 * row.gpus || row.gpus == 1 || options.run.launch || options.train.sync_norm ||
      options.train.accumulate > 1)
    return;
  fmt::print(
      stderr,
      "palimpsest: each of the paper's {0} GPUs normalized over its {1} of {2} images, and this process "
      "normalizes over all {2}, as the synchronized rows do: give --accumulate {0}, or {0} processes\n",
      row.gpus, options.train.batch / row.gpus, options.train.batch);
}

void print_changes(const Options& options, const PaperRow& row) {
  if (const std::string flags = changed_flags(options, row); !flags.empty())
    fmt::print("  changed:   {}: this was not the {}\n", flags,
               options.run.small ? "row at a size for two cores" : "paper's row");
}

/// Prints the last evaluation of a finished run beside the paper's figure.
void print_result(const Options& options, const PaperRow& row) {
  print_paper(row);
  const auto run = train::read_run(options.output.folder, row.name);
  if (run.evaluations.empty()) return;
  const train::EvaluationRecord& last = run.evaluations.back();
  const auto per_cent = [](double share) {
    return std::isfinite(share) ? fmt::format("{:.2f} %", 100 * share) : std::string("not known");
  };
  const std::string score =
      last.segmentation ? "mean IoU " + per_cent(last.metrics.mean_iou)
                        : "top-1 " + per_cent(last.metrics.top1) + ", top-5 " + per_cent(last.metrics.top5);
  fmt::print("  here:      {} after epoch {}\n", score, last.epoch);
  print_changes(options, row);
}

/// Evaluates the trained variants, which differ in their activations, with each of these activations: the
/// exchange of the in-place paper's table 1.
void print_exchange(const Options& options) {
  const auto runs = options_of_variants(options);
  Options common = options;
  common.output.quiet = true;
  const Datasets sets = make_datasets(common, Need::kValidation);
  fmt::print("\ntop-1 accuracy, {:<24}", "trained with");
  for (const Options& evaluated : runs) fmt::print(" evaluated with {:<10}", evaluated.model.activation);
  fmt::print("\n");
  auto rows = nlohmann::ordered_json::array();
  for (const Options& trained : runs) {
    fmt::print("                {:<24}", trained.model.activation);
    for (const Options& evaluated : runs) {
      Options o = common;
      o.train.precision = trained.train.precision;
      o.model.strategy = evaluated.model.strategy;
      o.model.activation = evaluated.model.activation;
      o.run.checkpoint = (std::filesystem::path(trained.output.folder) / train::kCheckpointFile).string();
      const auto model = load_trained_model(o);
      const auto loader = make_validation_loader(o, sets.validation);
      const auto record = train::evaluate(*model, *loader, make_loss_options(o), make_format(o));
      fmt::print(" {:>7.2f} %{:<15}", 100 * record.metrics.top1, "");
      rows.push_back({{"trained", trained.model.activation},
                      {"evaluated", evaluated.model.activation},
                      {"loss", record.loss},
                      {"top1", record.metrics.top1},
                      {"top5", record.metrics.top5}});
    }
    fmt::print("\n");
  }
  io::write_file_atomically(std::filesystem::path(options.output.folder) / "exchange.json",
                            rows.dump(2) + "\n");
}

/// Sets the flags in the row's file for its small form.
void set_small_flags(Options& options) {
  const PaperRow& row = paper_row(options.run.row);
  for (size_t i = 1; i + 1 < row.small.size(); i += 2) {
    const std::string& flag = row.small[i];
    const auto named = std::find_if(settings().begin(), settings().end(),
                                    [&](const Setting& s) { return "--" + s.flag == flag; });
    const std::string where = "examples/paper/" + row.name + ".toml: " + flag;
    if (named == settings().end()) throw Error(ErrorKind::kInternal, where + " is no setting");
    set_text(options, *named, row.small[i + 1], where);
  }
  options.output.folder = "runs/paper/" + row.name + "_small";
}

bool activations_differ(const Options& options) {
  const auto runs = options_of_variants(options);
  for (const Options& run : runs)
    if (run.model.activation != runs[0].model.activation) return true;
  return false;
}

}  // namespace

RowRecipe row_recipe(const Options& options) {
  const PaperRow& row = paper_row(options.run.row);
  if (!options.run.small) return {row.recipe, "examples/paper/" + row.name + ".toml"};
  return {small_recipe(row.small.at(0)), "examples/paper/small/" + row.small.at(0) + ".toml"};
}

void read_row_recipe(Options& options) {
  const RowRecipe recipe = row_recipe(options);
  read_toml(options, recipe.text, recipe.name);
  if (options.run.small) set_small_flags(options);
}

double small_warmup(const Options& recipe, int64_t epochs) {
  return recipe.schedule.warmup_epochs *
         (static_cast<double>(epochs) / static_cast<double>(recipe.train.epochs));
}

int run_reproduce(const Options& options) {
  if (options.run.list) {
    if (!options.run.row.empty())
      throw Error(ErrorKind::kUsage,
                  "reproduce --list lists all rows: leave out ROW, got '" + options.run.row + "'");
    return list_rows();
  }
  const PaperRow& row = paper_row(options.run.row);
  if (!options.run.small) {
    note_statistics(options, row);
    const int status = run_train(options);
    const bool leads = !options.run.launch || options.run.launch->rank == 0;
    if (status == 0 && leads) print_result(options, row);
    return status;
  }
  if (!options.output.quiet) std::cout << to_toml(options) << std::endl;
  const int status = compare(options, row.title + " At a size for two cores");
  if (status != 0) return status;
  if (activations_differ(options)) print_exchange(options);
  print_paper(row);
  print_changes(options, row);
  return 0;
}

}  // namespace palimpsest::cli
