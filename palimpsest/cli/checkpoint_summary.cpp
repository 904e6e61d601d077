#include "palimpsest/cli/checkpoint_summary.h"

#include "palimpsest/base/printable.h"
#include "palimpsest/cli/weights_file.h"
#include "palimpsest/train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace palimpsest::cli {
namespace {

constexpr std::size_t kShownClasses = 20;
constexpr int64_t kMost = int64_t{1} << 48;  // of steps and batches: no checkpoint of ours has more

/// Returns a number out of the metadata, which are texts; -1 if there is none.
int64_t number(const std::map<std::string, std::string>& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return -1;
  int64_t value = -1;
  const char* end = found->second.data() + found->second.size();
  const auto [stop, error] = std::from_chars(found->second.data(), end, value);
  return error == std::errc() && stop == end && value <= kMost ? value : -1;
}

int64_t steps_of_run(const Options& options, int64_t batches_per_epoch) {
  int64_t steps = 0;
  if (batches_per_epoch < 1 || __builtin_mul_overflow(options.train.epochs, batches_per_epoch, &steps))
    return -1;
  return options.train.max_steps > 0 ? std::min(steps, options.train.max_steps) : steps;
}

std::string data_text(const Options::Data& d) {
  std::string text = d.kind;
  if (d.kind == "generated")
    text += fmt::format(", {} images of {} x {} pixels", d.images, d.width, d.height);
  if (!d.root.empty()) text += " " + d.root;
  if (d.crop > 0) text += fmt::format(", crop {}", d.crop);
  return text;
}

std::string training_text(const Options& o) {
  const std::string optimizer =
      o.optimizer.kind == "sgd"
          ? fmt::format("SGD with lr {} and momentum {}", o.optimizer.lr, o.optimizer.momentum)
          : fmt::format("AdamW with lr {}, beta1 {} and beta2 {}", o.optimizer.lr, o.optimizer.beta1,
                        o.optimizer.beta2);
  return fmt::format("batch {}, {}, {} schedule, {}, seed {}", o.train.batch, optimizer, o.schedule.kind,
                     o.train.precision == "f32" ? o.train.dtype : o.train.precision, o.train.seed);
}

std::string progress_text(const CheckpointSummary& s) {
  if (s.step < 0)
    return s.folded ? "weights folded for inference" : "weights without the state of a training";
  std::string text = fmt::format("step {}", s.step);
  if (s.steps >= 0) text += fmt::format(" of {}", s.steps);
  if (s.epoch > 0) text += fmt::format(", epoch {} of {}", s.epoch, s.epochs);
  return text;
}

}  // namespace

CheckpointSummary summarize_checkpoint(const Options& options) {
  const auto metadata = train::read_checkpoint_metadata(options.run.checkpoint);
  CheckpointSummary s;
  s.path = options.run.checkpoint;
  s.network = describe_network(options);
  s.class_names = options.model.class_names;
  s.strategy = options.model.strategy;
  if (options.model.name.starts_with("densenet"))
    s.strategy += ", dense strategy " + options.model.dense_strategy;
  s.folded = metadata.contains("folded");
  s.step = number(metadata, "step");
  if (s.step < 0) return s;
  const int64_t batches = number(metadata, "batches_per_epoch");
  s.steps = steps_of_run(options, batches);
  if (batches > 0) s.epoch = (s.step + batches - 1) / batches;  // of the last step, as in the log
  s.epochs = options.train.epochs;
  s.data = data_text(options.data);
  if (const auto identity = metadata.find(train::kDataKey); identity != metadata.end())
    s.data += ": " + identity->second;
  s.training = training_text(options);
  return s;
}

std::string to_text(const CheckpointSummary& s) {
  std::string text;
  const auto row = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += fmt::format("{:<11} {}\n", name, printable(shortened(value, 2000)));
  };
  std::string names;
  for (std::size_t i = 0; i < std::min(kShownClasses, s.class_names.size()); ++i)
    names += (i ? ", " : "") + s.class_names[i];
  if (s.class_names.size() > kShownClasses) names += ", ...";
  row("checkpoint", s.path);
  row("network", s.network);
  row("classes", names);
  row("strategy", s.strategy);
  row("state", progress_text(s));
  row("data", s.data);
  row("training", s.training);
  return text;
}

nlohmann::ordered_json to_json(const CheckpointSummary& s, const Options& options) {
  const auto known = [](int64_t value) {
    return value < 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(value);
  };
  return {{"checkpoint", as_utf8(s.path)},
          {"model", options.model.name},
          {"classes", options.model.classes},
          {"class_names", s.class_names},
          {"activation", options.model.activation},
          {"slope", options.model.slope},
          {"strategy", options.model.strategy},
          {"step", known(s.step)},
          {"steps", known(s.steps)},
          {"epoch", s.epoch > 0 ? known(s.epoch) : known(-1)},
          {"epochs", s.step < 0 ? known(-1) : known(s.epochs)},
          {"folded", s.folded},
          {"data", s.data},
          {"training", s.training}};
}

}  // namespace palimpsest::cli
