#pragma once

#include "palimpsest/cli/options.h"

#include <filesystem>
#include <string>

namespace palimpsest::cli {

/// The folder of one training run. It protects a run that is already there: a second one begins only with
/// --resume (continue it) or --overwrite (replace it).
class RunFolder {
 public:
  /// Looks, changes nothing. Throws Error(kUsage) without an output folder, Error(kOutput) when there is a
  /// run and neither flag, Error(kCheckpoint) when there is nothing to resume.
  explicit RunFolder(const Options& options);

  /// Call it when all the rest is ready: with --overwrite removes the old run, then writes config.toml, so
  /// that a folder that cannot be written is found before the first step. Throws Error(kOutput).
  void begin(const std::string& config) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool overwrite_;
};

}  // namespace palimpsest::cli
