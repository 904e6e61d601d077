#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/data/check.h"

#include <ATen/Parallel.h>

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

namespace palimpsest::cli {
namespace {

using data::DataCheck;
using data::SplitCheck;

/// Shows on stderr how many files are decoded: one line that a terminal redraws, or a line per 1,000 files.
class DecodeProgress {
 public:
  ~DecodeProgress() {
    if (open_) std::cerr << std::endl;
  }
  void show(const std::string& split, int64_t done, int64_t all) {
    const std::string text = fmt::format("{}: {} of {} images decoded", printable(split), done, all);
    if (!is_terminal_) {
      if (done % 1000 == 0) std::cerr << text << std::endl;
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now - drawn_ < std::chrono::milliseconds(100) && done != all) return;
    drawn_ = now;
    std::cerr << "\r" << text << "\x1b[K" << std::flush;
    open_ = done != all;
    if (!open_) std::cerr << std::endl;
  }

 private:
  bool is_terminal_ = ::isatty(STDERR_FILENO) != 0, open_ = false;
  std::chrono::steady_clock::time_point drawn_;
};

std::string size_text(const std::array<int64_t, 2>& size) {
  return fmt::format("{}x{}", size[0], size[1]);
}

std::string class_name(const DataCheck& check, std::size_t id) {
  return id < check.class_names.size() ? check.class_names[id] : "class " + std::to_string(id);
}

/// Returns the classes to list: all that have a name, and the last that occurs.
std::size_t shown_classes(const DataCheck& check, const SplitCheck& split) {
  std::size_t last = std::min(check.class_names.size(), split.class_counts.size());
  for (std::size_t id = 0; id < split.class_counts.size(); ++id)
    if (split.class_counts[id] > 0) last = std::max(last, id + 1);
  return last;
}

void print_classes(const DataCheck& check, const SplitCheck& split) {
  int64_t sum = split.void_pixels;
  for (const int64_t count : split.class_counts) sum += count;
  const auto line = [&](const std::string& name, int64_t count) {
    fmt::print("    {:<28} {:>14}  {:6.2f} %\n", printable(name), count,
               100 * static_cast<double>(count) / static_cast<double>(std::max<int64_t>(sum, 1)));
  };
  fmt::print("  {} per class\n", split.labels_pixels ? "pixels" : "images");
  for (std::size_t id = 0; id < shown_classes(check, split); ++id)
    line(class_name(check, id), split.class_counts[id]);
  if (split.labels_pixels) line("void", split.void_pixels);
}

void print_split(const DataCheck& check, const SplitCheck& split, bool full) {
  fmt::print("\n{}\n  images      {}", printable(split.name), split.images);
  if (split.published_images > 0 && split.published_images != split.images)
    fmt::print(" (published: {})", split.published_images);
  fmt::print("\n  labels      {}{}\n", split.labels,
             split.published_labels || split.labels > 0 ? "" : " (not published)");
  if (split.skipped > 0) fmt::print("  skipped     {} other files or folders\n", split.skipped);
  if (full && split.largest[0] > 0)
    fmt::print("  sizes       {} to {}\n", size_text(split.smallest), size_text(split.largest));
  if (full) fmt::print("  unreadable  {}\n", split.unreadable);
  fmt::print("  faults      {}\n", split.faults.size());
  constexpr std::size_t kShown = 10;
  for (std::size_t i = 0; i < std::min(kShown, split.faults.size()); ++i)
    fmt::print("    {}\n", printable(split.faults[i]));
  if (split.faults.size() > kShown)
    fmt::print("    ... and {} more; --json lists all\n", split.faults.size() - kShown);
  for (const auto& [id, pixels] : split.ids_without_class)
    fmt::print("  the id {} has no class: {} pixels\n", id, pixels);
  const bool counted = full || split.class_counts.size() <= 20;  // not the 1,000 classes of ImageNet
  if (counted && !split.class_counts.empty()) print_classes(check, split);
}

void print(const DataCheck& check, const std::string& root, bool full) {
  fmt::print("layout    {}{}\nfolder    {}\nexpected  {}\n", check.kind,
             check.recognized ? " (recognized)" : "", printable(root), check.expected);
  if (!check.class_names.empty()) fmt::print("classes   {}\n", check.class_names.size());
  for (const std::string& name : check.missing) fmt::print("no split  {}\n", name);
  for (const SplitCheck& split : check.splits) print_split(check, split, full);
}

nlohmann::ordered_json to_json(const DataCheck& check, const SplitCheck& split, bool full) {
  nlohmann::ordered_json json{{"name", as_utf8(split.name)},
                              {"images", split.images},
                              {"labels", split.labels},
                              {"skipped", split.skipped}};
  json["published_images"] =
      split.published_images > 0 ? nlohmann::ordered_json(split.published_images) : nullptr;
  auto& faults = json["faults"] = nlohmann::ordered_json::array();
  for (const std::string& fault : split.faults) faults.push_back(as_utf8(fault));
  if (full) {
    json["unreadable"] = split.unreadable;
    json["smallest"] = split.smallest;
    json["largest"] = split.largest;
  }
  if (!split.class_counts.empty()) {
    auto& counts = json["class_counts"] = nlohmann::ordered_json::object();
    for (std::size_t id = 0; id < shown_classes(check, split); ++id)
      counts[class_name(check, id)] = split.class_counts[id];
  }
  if (full && split.labels_pixels) {
    json["void_pixels"] = split.void_pixels;
    auto& others = json["ids_without_class"] = nlohmann::ordered_json::object();
    for (const auto& [id, pixels] : split.ids_without_class) others[std::to_string(id)] = pixels;
  }
  return json;
}

nlohmann::ordered_json to_json(const DataCheck& check, const std::string& root, bool full) {
  nlohmann::ordered_json json{{"kind", check.kind},           {"recognized", check.recognized},
                              {"root", as_utf8(root)},        {"expected", check.expected},
                              {"classes", check.class_names}, {"missing_splits", check.missing}};
  auto& splits = json["splits"] = nlohmann::ordered_json::array();
  for (const SplitCheck& split : check.splits) splits.push_back(to_json(check, split, full));
  return json;
}

}  // namespace

int run_data(const Options& options) {
  const std::vector<std::string> actions{"check"};
  if (options.run.action != "check")
    throw Error(ErrorKind::kUsage, unknown_name_message("action of data", options.run.action, actions));
  DecodeProgress progress;
  data::CheckOptions check_options;
  check_options.kind = options.run.data_kind;
  check_options.full = options.run.full;
  check_options.classes = options.model.classes;
  if (options.given.contains("data.ignore_id")) check_options.ignore_id = options.data.ignore_id;
  if (!options.data.exif_orientation) check_options.orientation = io::Orientation::kAsStored;
  check_options.threads = at::get_num_threads();
  check_options.progress = [&](const std::string& split, int64_t done, int64_t all) {
    progress.show(split, done, all);
  };
  const DataCheck check = data::check_data(options.run.folder, check_options);
  if (options.run.json) {
    std::cout << to_json(check, options.run.folder, options.run.full).dump() << std::endl;
  } else {
    try {
      print(check, options.run.folder, options.run.full);
      if (std::fflush(stdout) != 0) std::cout.setstate(std::ios::badbit);  // which the program reports
    } catch (const std::system_error&) {                                   // of fmt
      std::cout.setstate(std::ios::badbit);
    }
  }
  if (check.faults() == 0) return 0;
  throw Error(ErrorKind::kData, fmt::format("'{}' has {}, which the check names", options.run.folder,
                                            counted(check.faults(), "fault")));
}

}  // namespace palimpsest::cli
