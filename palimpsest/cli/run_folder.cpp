#include "palimpsest/cli/run_folder.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/output_file.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/train/checkpoint.h"

#include <array>
#include <iostream>

namespace palimpsest::cli {
namespace {

using train::kBestFile;
using train::kCheckpointFile;
using train::kConfigFile;
using train::kExponentsFile;
using train::kLogFile;
constexpr std::array kFiles{kCheckpointFile, kBestFile, kLogFile, kConfigFile, kExponentsFile};

/// Holds the files of the earlier run until the run that replaces it ends.
constexpr const char* kEarlierFolder = ".earlier";

}  // namespace

RunFolder::RunFolder(Options& options, Command command) : folder_(options.output.folder) {
  if (folder_.empty())
    throw Error(ErrorKind::kUsage,
                "[output] folder (--output) is required: checkpoint, log and configuration go there");
  io::FolderLock::check_free(folder_);  // first: what a program at work makes of the folder is not known yet
  was_killed_ = io::FolderLock::was_left(folder_);
  check(options, command);  // first without the lock: a refused command makes no folder
  lock_.emplace(folder_);
  check(options, command);  // what another program did meanwhile
  for (const char* file : kFiles) io::remove_leftovers(written_file(folder_ / file));
  has_earlier_run_ = holds(kEarlierFolder);  // of a program that was killed
  if (has_earlier_run_ && has_begun()) forget_earlier_run();
  held_run_ = holds(kCheckpointFile) || holds_steps();
  if (!has_earlier_run_ && (held_run_ ? options.run.overwrite : holds(kConfigFile))) keep_earlier_run();
  if (!options.run.resume || holds(kCheckpointFile)) return;
  options.run.resume = false;
  if (!options.output.quiet)
    std::cerr << "palimpsest: '" << printable(folder_.string())
              << "' has no checkpoint yet: the run begins with its first step" << std::endl;
}

RunFolder::~RunFolder() {
  if (!lock_) return;
  if (kept_ || has_begun()) {
    forget_earlier_run();
  } else if (has_earlier_run_) {
    restore_earlier_run();
  } else if (!held_run_) {
    std::error_code ignored;
    for (const char* file : kFiles) std::filesystem::remove(folder_ / file, ignored);
  }
}

void RunFolder::keep_earlier_run() {
  const std::filesystem::path unfinished = folder_ / (std::string(kEarlierFolder) + ".tmp");
  std::error_code error;
  std::filesystem::remove_all(unfinished, error);
  if (!error) std::filesystem::create_directory(unfinished, error);
  for (const char* file : kFiles) {
    if (error || !holds(file)) continue;
    const auto target = written_file(folder_ / file);
    // A checkpoint is replaced as a whole, so that a second name costs nothing. The log is written in place.
    const bool replaced = file == kCheckpointFile || file == kBestFile;
    if (replaced) std::filesystem::create_hard_link(target, unfinished / file, error);
    if (!replaced || error) std::filesystem::copy_file(target, unfinished / file, error);
  }
  if (!error) std::filesystem::rename(unfinished, folder_ / kEarlierFolder, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove_all(unfinished, ignored);
    throw Error(ErrorKind::kOutput, "cannot write into '" + folder_.string() + "': " + error.message() +
                                        " (the earlier run is kept until the first step of the new one)");
  }
  has_earlier_run_ = true;
}

bool RunFolder::has_begun() const {
  if (!holds_steps()) return false;
  if (!has_earlier_run_) return true;
  try {  // the log is the earlier run's until the new run opens it
    return io::read_file(folder_ / kLogFile) != io::read_file(folder_ / kEarlierFolder / kLogFile);
  } catch (const Error&) {
    return true;
  }
}

void RunFolder::restore_earlier_run() noexcept {
  std::error_code ignored;
  for (const char* file : kFiles) {
    const auto kept = folder_ / kEarlierFolder / file, target = written_file(folder_ / file);
    if (!std::filesystem::exists(kept, ignored)) {
      std::filesystem::remove(folder_ / file, ignored);
      continue;
    }
    std::error_code error;
    std::filesystem::rename(kept, target, error);
    if (error)  // a link to another file system
      std::filesystem::copy_file(kept, target, std::filesystem::copy_options::overwrite_existing, error);
    if (error) return;  // the next program finds what is left in kEarlierFolder
  }
  forget_earlier_run();
}

void RunFolder::forget_earlier_run() noexcept {
  std::error_code ignored;
  std::filesystem::remove_all(folder_ / kEarlierFolder, ignored);
  has_earlier_run_ = false;
}

bool RunFolder::holds(const char* file) const {
  std::error_code ignored;  // below a regular file, say: the first write reports that
  return std::filesystem::exists(folder_ / file, ignored);
}

bool RunFolder::holds_steps() const {
  std::error_code missing;
  const auto bytes = std::filesystem::file_size(folder_ / kLogFile, missing);
  return !missing && bytes > 0;
}

void RunFolder::check(const Options& options, Command command) const {
  if (options.run.overwrite || (options.run.resume && holds(kCheckpointFile))) return;
  const std::string name = "'" + folder_.string() + "'";
  const char* others = "replace it with --overwrite, or name another --output";
  if (holds(kCheckpointFile)) {
    const char* way_out = command == Command::kTrain ? "continue it with --resume, " : "";
    throw Error(ErrorKind::kOutput, "output folder " + name + " already holds a run (" + kCheckpointFile +
                                        "): " + way_out + others);
  }
  const std::string missing = (folder_ / kCheckpointFile).string() + " does not exist: ";
  if (holds_steps())
    throw Error(options.run.resume ? ErrorKind::kCheckpoint : ErrorKind::kOutput,
                missing + "the run that wrote " + kLogFile + " cannot be continued; " + others);
  if (holds(kConfigFile) && !was_killed_) {
    if (options.run.resume) throw Error(ErrorKind::kCheckpoint, missing + "nothing to --resume; " + others);
    throw Error(ErrorKind::kOutput,
                "output folder " + name + " already holds a run (" + kConfigFile + "): " + others);
  }
  if (options.run.resume && !holds(kConfigFile))
    throw Error(ErrorKind::kCheckpoint, missing + "nothing to --resume; start without it");
}

}  // namespace palimpsest::cli
