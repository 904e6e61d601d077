#include "palimpsest/cli/resume.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/settings.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace palimpsest::cli {
namespace {

namespace fs = std::filesystem;

/// The settings without which the parameters, the classes or the order of the data have another meaning.
constexpr std::string_view kFixed[] = {
    "model.name",
    "model.classes",
    "model.activation",
    "model.slope",
    "model.pre_activation",
    "model.dropout",
    "model.stochastic_depth",
    "model.output_stride",
    "model.weights",
    "model.reset_classifier",
    "data.kind",
    "data.train_split",
    "data.annotations",
    "data.images",
    "data.height",
    "data.width",
    "data.data_seed",
    "data.shuffle_buffer",
    "data.shard_streams",
    "data.ignore_id",
    "data.mean",
    "data.std",
    "data.sampler",
    "optimizer.kind",
    "train.batch",
    "train.seed",
    "train.dtype",
    "train.keep_best",
};

bool is_fixed(const std::string& id) {
  return std::find(std::begin(kFixed), std::end(kFixed), id) != std::end(kFixed);
}

bool has_effect(const Options& options, const Setting& s) {
  return s.taken_by(Command::kTrain) && void_reason(options, s).empty();
}

/// Returns the settings of the run in which `a` and `b` differ.
std::vector<const Setting*> differences(const Options& a, const Options& b) {
  std::vector<const Setting*> found;
  for (const Setting& s : settings())
    if (!s.table.empty() && s.scope() == Scope::kRun && (has_effect(a, s) || has_effect(b, s)) &&
        get(a, s) != get(b, s))
      found.push_back(&s);
  return found;
}

/// Throws Error(kUsage) if a row of the papers is to go on in the folder of another run: its result would
/// stand beside the figure of the wrong row.
void check_row(const Options& options, const fs::path& folder) {
  const std::string& row = options.run.row;
  const std::string& stored = options.run.stored_row;
  if (row.empty() || row == stored) return;
  throw Error(
      ErrorKind::kUsage,
      fmt::format("reproduce {} --resume needs a run of this row, '{}' holds {}: name another --output, "
                  "or continue that run with {} --resume",
                  row, folder.string(),
                  stored.empty() ? "a run of no row" : "one of the row " + shortened(stored, 100),
                  stored.empty() ? "train" : "reproduce " + shortened(stored, 100)));
}

}  // namespace

std::string name_of_stored(const fs::path& checkpoint) {
  return checkpoint.string() + " (stored configuration)";
}

bool read_resumed(Options& options, const fs::path& folder) {
  std::error_code ignored;
  const fs::path checkpoint = folder / train::kCheckpointFile, file = folder / train::kConfigFile;
  const bool has_checkpoint = fs::exists(checkpoint, ignored), has_file = fs::exists(file, ignored);
  std::string beside, stored, unreadable;
  try {
    if (has_file) beside = io::read_file(file);
  } catch (const Error& failure) {
    unreadable = failure.what();
  }
  if (has_checkpoint) {
    const auto metadata = train::read_checkpoint_metadata(checkpoint);
    const auto entry = [&](const char* key) {
      const auto found = metadata.find(key);
      return found == metadata.end() ? std::string() : found->second;
    };
    options.run.old_shuffle = !metadata.contains(train::kOrderKey);
    options.run.stored_data = entry(train::kDataKey);
    options.run.stored_row = entry(kRowKey);
    check_row(options, folder);
    stored = entry("config");
  }
  if (stored.empty() && !unreadable.empty()) throw Error(ErrorKind::kUsage, unreadable);
  if (!stored.empty()) {
    read_resumed_toml(options, stored, name_of_stored(checkpoint));
    Options edited = options;
    try {
      read_toml_of(Scope::kRun, Scope::kRun, edited, beside, file.string());
    } catch (const Error& error) {
      unreadable = error.what();
      beside.clear();
    }
    if (!unreadable.empty())
      options.run.resume_notes.push_back(unreadable + "; the checkpoint's configuration counts");
    for (const Setting* s : differences(edited, options))
      options.run.resume_notes.push_back("'" + file.string() + "' says " + to_toml(get(edited, *s)) +
                                         " for " + both_names(*s) + ", the checkpoint's " +
                                         to_toml(get(options, *s)) +
                                         " counts: give changes as flags, or with --config");
  } else {
    read_toml_of(Scope::kRun, Scope::kRun, options, beside, file.string());
  }
  read_toml_of(Scope::kMachine, Scope::kMachine, options, beside, file.string());
  options.given.clear();
  return has_checkpoint && (has_file || !stored.empty());
}

void check_resumed(Options& options, const Options& resumed) {
  // Given as "that of the data", which the run has found already.
  if (options.model.classes == 0) options.model.classes = resumed.model.classes;
  if (options.model.class_names.empty()) options.model.class_names = resumed.model.class_names;
  for (const Setting* s : differences(options, resumed)) {
    const std::string was = to_toml(get(resumed, *s)), is = to_toml(get(options, *s));
    const auto given = options.given.find(s->id());
    const std::string where = given == options.given.end() ? both_names(*s) : given->second;
    if (is_fixed(s->id()))
      throw Error(ErrorKind::kUsage,
                  fmt::format("{} must stay {} when a run is resumed, got {}: leave it out, or begin a new "
                              "run in another --output",
                              where, was, is));
    options.run.resume_notes.push_back(
        fmt::format("the run goes on with {} = {}; it was {}", both_names(*s), is, was));
  }
}

}  // namespace palimpsest::cli
