#pragma once

#include "palimpsest/io/atomic_file.h"
#include "palimpsest/train/trainer.h"
#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <nlohmann/json.hpp>

#include <atomic>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace palimpsest::train::testing {

inline constexpr int64_t kBatches = 5;  ///< an epoch of the runs below: 20 images in batches of 4
inline constexpr int64_t kSteps = 2 * kBatches;

inline TrainerOptions tiny_options(const std::filesystem::path& output) {
  TrainerOptions options;
  options.epochs = 2;
  options.seed = 5;
  options.optimizer = {.lr = 0.1, .momentum = 0.9, .nesterov = true, .decay_norm = false};
  options.schedule.warmup_epochs = 0.4;
  options.output = output;
  options.log_every = 2;
  options.config = "[model]\nname = \"tiny\"\n";
  options.metadata["strategy"] = "standard";
  options.quiet = true;
  return options;
}

/// One process's worth of a run: a fresh model, loaders and stop flag around train().
struct TinyRun {
  explicit TinyRun(uint64_t model_seed = 1, int64_t workers = 0)
      : model(make_tiny(model_seed)),
        loader(std::make_shared<BrightestColor>(4 * kBatches, 6), loader_options(4, workers)),
        validation(std::make_shared<BrightestColor>(4, 6), loader_options(2)) {}

  TrainingOutcome train(const TrainerOptions& options) {
    return palimpsest::train::train(*model, loader, &validation, options, stop);
  }
  /// Runs `act(logits)` in the forward pass of this object's training step number `step` (the first is 1).
  void at_step(int64_t step, std::function<at::Tensor(const at::Tensor&)> act) {
    model->hook = only_at(step, std::move(act));
  }
  /// Does the same with the images of that pass.
  void at_images_of_step(int64_t step, std::function<at::Tensor(const at::Tensor&)> act) {
    model->images_hook = only_at(step, std::move(act));
  }
  static std::function<at::Tensor(TinySegmenter&, const at::Tensor&)> only_at(
      int64_t step, std::function<at::Tensor(const at::Tensor&)> act) {
    return [step, act = std::move(act)](TinySegmenter& m, const at::Tensor& t) {
      return m.is_training() && m.training_steps == step ? act(t) : t;
    };
  }

  std::shared_ptr<TinySegmenter> model;
  data::Loader loader, validation;
  std::atomic<int> stop{0};
};

inline std::string checkpoint_bytes(const std::filesystem::path& output) {
  return io::read_file(output / "checkpoint.safetensors");
}

inline std::vector<nlohmann::json> read_log(const std::filesystem::path& output) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(io::read_file(output / "log.jsonl"));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// Returns the log without the values that differ from run to run: times, and bytes that depend on the
/// process.
inline std::vector<nlohmann::json> reproducible_log(const std::filesystem::path& output) {
  auto lines = read_log(output);
  for (auto& line : lines)
    for (const char* key : {"seconds", "data_seconds", "images_per_second", "eta_seconds", "kept_bytes",
                            "current_bytes", "peak_bytes"})
      line.erase(key);
  return lines;
}

}  // namespace palimpsest::train::testing
