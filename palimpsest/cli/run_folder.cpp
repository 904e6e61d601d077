#include "palimpsest/cli/run_folder.h"

#include "palimpsest/base/error.h"

#include <filesystem>

namespace palimpsest::cli {

void check_run_folder(const Options& options) {
  const std::filesystem::path folder = options.output.folder;
  if (folder.empty())
    throw Error(ErrorKind::kUsage,
                "[output] folder (--output) is required: checkpoint, log and configuration go there");
  const auto holds = [&](const char* file) {
    std::error_code ignored;  // below a regular file, say: the first write reports that
    return std::filesystem::exists(folder / file, ignored);
  };
  if (options.run.resume) {
    if (!holds("checkpoint.safetensors"))
      throw Error(ErrorKind::kCheckpoint, (folder / "checkpoint.safetensors").string() +
                                              " does not exist: nothing to --resume; start without it");
    return;
  }
  if (options.run.overwrite) return;
  for (const char* file : {"checkpoint.safetensors", "log.jsonl", "config.toml"})
    if (holds(file))
      throw Error(ErrorKind::kOutput,
                  "output folder '" + folder.string() + "' already holds a run (" + file +
                      "): continue it with --resume, replace it with --overwrite, or name another --output");
}

}  // namespace palimpsest::cli
