#include "palimpsest/cli/run_folder.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/atomic_file.h"

namespace palimpsest::cli {
namespace {

constexpr const char* kCheckpoint = "checkpoint.safetensors";
constexpr const char* kRunFiles[] = {kCheckpoint, "log.jsonl", "config.toml"};

bool exists(const std::filesystem::path& path) {
  std::error_code ignored;  // below a regular file, say: begin() reports that when it writes
  return std::filesystem::exists(path, ignored);
}

}  // namespace

RunFolder::RunFolder(const Options& options)
    : path_(options.output.folder), overwrite_(options.run.overwrite) {
  if (path_.empty())
    throw Error(ErrorKind::kUsage,
                "[output] folder (--output) is required: checkpoint, log and configuration go there");
  if (options.run.resume) {
    if (!exists(path_ / kCheckpoint))
      throw Error(ErrorKind::kCheckpoint,
                  (path_ / kCheckpoint).string() +
                      " does not exist: nothing to --resume; start without it, or with "
                      "--overwrite");
    return;
  }
  if (overwrite_) return;
  for (const char* file : kRunFiles)
    if (exists(path_ / file))
      throw Error(ErrorKind::kOutput,
                  "output folder '" + path_.string() + "' already holds a run (" + file +
                      "): continue it with --resume, replace it with --overwrite, or name another "
                      "--output");
}

void RunFolder::begin(const std::string& config) const {
  if (overwrite_) {
    for (const char* file : kRunFiles) {
      std::error_code failure;
      std::filesystem::remove(path_ / file, failure);
      if (failure)
        throw Error(ErrorKind::kOutput, (path_ / file).string() + " cannot be removed: " + failure.message());
    }
  }
  io::write_file_atomically(path_ / "config.toml", config);
}

}  // namespace palimpsest::cli
