#include "palimpsest/train/report.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/output_file.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/train/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <system_error>

namespace palimpsest::cli {
namespace {

namespace fs = std::filesystem;

/// Returns the folders in `folder` that hold runs, sorted.
std::vector<std::string> runs_below(const fs::path& folder) {
  std::vector<std::string> runs;
  std::error_code error, ignored;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (fs::is_directory(entry->path(), ignored) && train::is_run_folder(entry->path()))
      runs.push_back(entry->path().string());
  std::ranges::sort(runs);
  return runs;
}

/// Throws Error(kCheckpoint) unless the folder holds a run.
void check_run(const fs::path& run) {
  constexpr const char* kWanted =
      "report needs the output folder of a training (with log.jsonl, config.toml or checkpoint.safetensors)";
  const std::string name = "'" + run.string() + "'";
  std::error_code error;
  if (!fs::exists(run, error)) {
    const fs::path parent = run.has_parent_path() ? run.parent_path() : fs::path(".");
    auto others = runs_below(parent);
    if (!run.has_parent_path())
      for (std::string& other : others) other = fs::path(other).filename().string();
    const std::string nearest = nearest_name(run.string(), others);
    throw Error(ErrorKind::kCheckpoint,
                fmt::format("{}, {} does not exist{}", kWanted, name,
                            nearest.empty() ? "" : "; did you mean '" + nearest + "'?"));
  }
  if (!fs::is_directory(run, error)) {
    const fs::path parent = run.has_parent_path() ? run.parent_path() : fs::path(".");
    throw Error(
        ErrorKind::kCheckpoint,
        fmt::format("{}, {} is a file{}", kWanted, name,
                    train::is_run_folder(parent) ? "; name its folder '" + parent.string() + "'" : ""));
  }
  if (train::is_run_folder(run)) return;
  const auto below = runs_below(run);
  throw Error(ErrorKind::kCheckpoint,
              fmt::format("{}, {} holds none of them{}", kWanted, name,
                          below.empty() ? "" : fmt::format("; these do: '{}'", fmt::join(below, "', '"))));
}

/// Returns the last part of each path, or the whole path where two have the same last part.
std::vector<std::string> names_of(const std::vector<std::string>& runs) {
  std::map<std::string, int> count;
  std::vector<std::string> names;
  for (const std::string& run : runs) {
    fs::path path = fs::path(run).lexically_normal();
    if (path.filename().empty()) path = path.parent_path();  // "runs/a/"
    if (path == "." || path == "..") path = fs::absolute(path).lexically_normal().parent_path();
    names.push_back(path.filename().empty() ? run : path.filename().string());
    ++count[names.back()];
  }
  for (size_t i = 0; i < runs.size(); ++i)
    if (count[names[i]] > 1) names[i] = runs[i];
  return names;
}

/// Adds the entries of a configuration whose keys are not there yet. Throws Error for text that is no TOML.
void add_settings(train::ReportRun& run, const std::string& text, const std::string& file) {
  for (auto& entry : toml_entries(text, file)) {
    const bool known =
        std::ranges::any_of(run.settings, [&](const auto& s) { return s.first == entry.first; });
    if (!known) run.settings.push_back(std::move(entry));
  }
  Options options;
  try {
    read_toml(options, text, file);
  } catch (const Error&) {
    return;  // the settings of another version, which the page shows all the same
  }
  if (run.class_names.empty()) run.class_names = options.model.class_names;
}

/// Reads the settings of the run from its checkpoint, and those of the machine from config.toml.
void read_settings(train::ReportRun& run, const fs::path& folder) {
  std::error_code error;
  if (const fs::path file = folder / train::kCheckpointFile; fs::exists(file, error)) {
    try {
      const auto metadata = train::read_checkpoint_metadata(file);
      if (const auto config = metadata.find("config"); config != metadata.end())
        add_settings(run, config->second, file.string());
    } catch (const Error& failure) {
      run.notes.push_back(fmt::format("The settings in the checkpoint were left out: {}.", failure.what()));
    }
  }
  if (const fs::path file = folder / train::kConfigFile; fs::exists(file, error)) {
    try {
      add_settings(run, io::read_file(file), file.string());
    } catch (const Error& failure) {
      run.notes.push_back(fmt::format("config.toml was left out: {}.", failure.what()));
    }
  }
  std::ranges::stable_sort(run.settings, {},
                           [](const auto& s) { return s.first.substr(0, s.first.find('.')); });
}

std::string title_of(const std::vector<std::string>& names) {
  if (names.size() <= 3) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more runs", names[0], names.size() - 1);
}

}  // namespace

int run_report(const Options& options) {
  const auto& runs = options.run.inputs;
  for (const std::string& run : runs) check_run(run);
  for (size_t i = 0; i < runs.size(); ++i)
    for (size_t k = 0; k < i; ++k)
      if (std::error_code error; fs::equivalent(runs[i], runs[k], error))
        throw Error(ErrorKind::kUsage, "the run '" + runs[i] + "' is given twice");
  const fs::path page =
      options.run.file.empty() ? fs::path(runs[0]) / "report.html" : fs::path(options.run.file);
  if (page.extension() != ".html")
    throw Error(ErrorKind::kUsage, "--output must be a file .html, got " + page.string());
  check_replaceable(page, "--output", options);  // a run at work may have its page in its folder
  io::AtomicFile file(page);  // a page that cannot be written is an error before the runs are read

  train::Report report;
  const auto names = names_of(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    report.runs.push_back(train::read_run(runs[i], printable(names[i])));
    read_settings(report.runs.back(), runs[i]);
    for (std::string& note : report.runs.back().notes) note = printable(note);
  }
  report.title = printable(title_of(names));
  report.time_note = "median over the steps in the log";
  const std::string html = train::to_html(report);
  file.write(html.data(), html.size());
  file.commit();
  for (const auto& run : report.runs)
    for (const std::string& note : run.notes)
      std::cerr << "palimpsest: " << run.name << ": " << note << std::endl;
  std::cout << "report: " << printable(page.string()) << std::endl;
  return 0;
}

}  // namespace palimpsest::cli
