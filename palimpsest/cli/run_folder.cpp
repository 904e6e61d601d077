#include "palimpsest/cli/run_folder.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/train/checkpoint.h"

#include <array>
#include <iostream>

namespace palimpsest::cli {
namespace {

using train::kCheckpointFile;
constexpr const char* kLogFile = "log.jsonl";
constexpr const char* kConfigFile = "config.toml";
constexpr std::array kFiles{kCheckpointFile, kLogFile, kConfigFile};

/// The name of a file of the earlier run, until the run that replaces it ends.
std::string earlier(const char* file) {
  return std::string(".") + file + ".earlier";
}

}  // namespace

RunFolder::RunFolder(Options& options, Command command) : folder_(options.output.folder) {
  if (folder_.empty())
    throw Error(ErrorKind::kUsage,
                "[output] folder (--output) is required: checkpoint, log and configuration go there");
  was_killed_ = holds(io::FolderLock::kFile);
  check(options, command);  // first without the lock: a refused command makes no folder
  lock_.emplace(folder_);
  check(options, command);  // what another program did meanwhile
  forget_earlier_run();     // of a program that was killed
  held_run_ = holds(kCheckpointFile) || holds_steps();
  if (held_run_ ? options.run.overwrite : holds(kConfigFile)) keep_earlier_run();
  if (!options.run.resume || holds(kCheckpointFile)) return;
  options.run.resume = false;
  if (!options.output.quiet)
    std::cerr << "palimpsest: '" << printable(folder_.string())
              << "' has no checkpoint yet: the run begins with its first step" << std::endl;
}

RunFolder::~RunFolder() {
  if (!lock_) return;
  const bool has_begun = kept_ || (holds_steps() && !(has_earlier_run_ && has_earlier_log()));
  if (!has_begun && has_earlier_run_) {
    restore_earlier_run();
  } else if (!has_begun && !held_run_) {
    std::error_code ignored;
    for (const char* file : kFiles) std::filesystem::remove(folder_ / file, ignored);
  }
  forget_earlier_run();
}

void RunFolder::keep_earlier_run() {
  for (const char* file : kFiles) {
    if (!holds(file)) continue;
    std::error_code error;
    // A checkpoint is replaced as a whole, so that a second name costs nothing. The log is written in place.
    if (file == kCheckpointFile)
      std::filesystem::create_hard_link(folder_ / file, folder_ / earlier(file), error);
    if (file != kCheckpointFile || error)
      std::filesystem::copy_file(folder_ / file, folder_ / earlier(file), error);
    if (!error) continue;
    forget_earlier_run();
    throw Error(ErrorKind::kOutput, "cannot write into '" + folder_.string() + "': " + error.message() +
                                        " (the earlier run is kept until the first step of the new one)");
  }
  has_earlier_run_ = true;
}

bool RunFolder::has_earlier_log() const {
  try {
    return io::read_file(folder_ / kLogFile) == io::read_file(folder_ / earlier(kLogFile));
  } catch (const Error&) {
    return false;
  }
}

void RunFolder::restore_earlier_run() noexcept {
  std::error_code ignored;
  for (const char* file : kFiles) {
    if (holds(earlier(file).c_str()))
      std::filesystem::rename(folder_ / earlier(file), folder_ / file, ignored);
    else
      std::filesystem::remove(folder_ / file, ignored);
  }
}

void RunFolder::forget_earlier_run() noexcept {
  std::error_code ignored;
  for (const char* file : kFiles) std::filesystem::remove(folder_ / earlier(file), ignored);
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
