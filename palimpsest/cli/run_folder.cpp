#include "palimpsest/cli/run_folder.h"

#include "palimpsest/base/error.h"

#include <iostream>

namespace palimpsest::cli {
namespace {

constexpr const char* kCheckpointFile = "checkpoint.safetensors";
constexpr const char* kLogFile = "log.jsonl";
constexpr const char* kConfigFile = "config.toml";

}  // namespace

RunFolder::RunFolder(Options& options, Command command) : folder_(options.output.folder) {
  if (folder_.empty())
    throw Error(ErrorKind::kUsage,
                "[output] folder (--output) is required: checkpoint, log and configuration go there");
  check(options, command);  // first without the lock: a refused command makes no folder
  lock_.emplace(folder_);
  check(options, command);  // what another program did meanwhile
  held_run_ = holds(kCheckpointFile) || holds_steps();
  held_config_ = holds(kConfigFile);
  if (!options.run.resume || holds(kCheckpointFile)) return;
  options.run.resume = false;
  if (!options.output.quiet)
    std::cerr << "palimpsest: '" << folder_.string()
              << "' has no checkpoint yet: the run begins with its first step" << std::endl;
}

RunFolder::~RunFolder() {
  if (kept_ || held_run_ || !lock_ || holds_steps()) return;
  std::error_code ignored;
  for (const char* file : {kCheckpointFile, kLogFile, kConfigFile})
    if (file != kConfigFile || !held_config_) std::filesystem::remove(folder_ / file, ignored);
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
  if (options.run.resume && !holds(kConfigFile))
    throw Error(ErrorKind::kCheckpoint, missing + "nothing to --resume; start without it");
}

}  // namespace palimpsest::cli
