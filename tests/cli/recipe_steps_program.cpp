// recipe_steps_program ROOTS: two steps and an evaluation of each row of examples/paper, on the data set in
// ROOTS/KIND, at a small size. Writes no files: the networks of the rows have up to 10^8 parameters. Prints one
// line of JSON per row: its losses, and the images of its evaluation.
#include "palimpsest/base/error.h"
#include "palimpsest/cli/command_line.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/paper_rows.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/train/trainer.h"

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::cli {
namespace {

/// The least side that a network of the rows takes, but for AlexNet and Inception v3.
int64_t side_of(const std::string& model) {
  return model == "inception_v3" ? 75 : model == "alexnet" ? 64 : 32;
}

Options options_of(const PaperRow& row, const std::string& roots) {
  const char* const arguments[] = {"palimpsest", "reproduce", row.name.c_str(), "--data-root", roots.c_str()};
  Options o = parse_command_line(std::size(arguments), arguments).options;
  const int64_t side = side_of(o.model.name);
  o.data.root += "/" + o.data.kind;
  o.data.crop = side;
  if (o.data.eval_crop > 0) o.data.eval_crop = side;
  if (o.data.short_side > 0) o.data.short_side = side + 4;
  if (o.data.eval_short_side > 0) o.data.eval_short_side = side + 4;
  o.data.workers = 0;
  o.train.batch = 2;
  o.train.max_steps = 2;
  o.optimizer.lr *= 0.01;  // two images of noise: with the full rate the second loss may be infinite
  o.output.quiet = true;
  o.output.log_every = 1;
  return o;
}

nlohmann::ordered_json take_steps(Options options) {
  const Datasets sets = make_datasets(options, Need::kTrainAndValidation);
  const auto model = make_model(options);
  const auto train_loader = make_train_loader(options, sets);
  const auto validation_loader = make_validation_loader(options, sets.validation);
  train::TrainerOptions trainer = make_trainer_options(options);
  trainer.output.clear();
  const auto outcome = train::train(*model, *train_loader, validation_loader.get(), trainer);
  auto losses = nlohmann::ordered_json::array();
  for (const auto& step : outcome.steps) losses.push_back(step.loss);
  return {{"losses", losses}, {"evaluated", outcome.evaluations.back().images}};
}

}  // namespace
}  // namespace palimpsest::cli

int main(int argc, char** argv) {
  using namespace palimpsest;
  memory::install_counting_allocator();
  std::map<std::string, nlohmann::ordered_json>
      done;  // rows that differ in batch and crop only are the same here
  for (const cli::PaperRow& row : cli::paper_rows()) {
    if (argc < 2 || (argc > 2 && row.name != argv[2])) continue;
    nlohmann::ordered_json line{{"row", row.name}};
    try {
      const cli::Options options = cli::options_of(row, argv[1]);
      auto& result = done[cli::to_toml(options, cli::Scope::kRun)];
      if (result.is_null()) result = cli::take_steps(options);
      line.update(result);
    } catch (const std::exception& error) {
      line["error"] = error.what();
    }
    std::cout << line.dump() << std::endl;
    memory::release_retained();
  }
}
