#pragma once

#include "palimpsest/cli/options.h"
#include "palimpsest/io/folder_lock.h"

#include <filesystem>
#include <optional>

namespace palimpsest::cli {

/// The output folder of a training, held by this program alone. It protects the run that is already there: a
/// run begins there only with --resume (continue it) or --overwrite (replace it). A folder holds a run if it
/// has a checkpoint, or a log with steps.
///
/// Throws Error(kUsage) without an output folder, Error(kOutput) if there is a run and neither flag or if
/// another program holds the folder, and Error(kCheckpoint) if there is nothing to resume. A program that was
/// killed before its first checkpoint left config.toml and its lock; both a plain start and --resume then begin
/// the run with its first step. A config.toml without a lock is the user's: it is not written over.
class RunFolder {
 public:
  /// Clears options.run.resume if the run has no checkpoint yet. `command`: the one that the user gave.
  RunFolder(Options& options, Command command);
  /// If the run ended before its first step was done and keep() was not called, the corrected command finds the
  /// folder as it was: removes the files of the run, and restores the run that --overwrite would have replaced,
  /// or the config.toml of a killed one. Until then their files lie in the hidden folder `.earlier`, where a
  /// program finds them after a kill.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  /// The run ended normally or by a signal: its files stay.
  void keep() { kept_ = true; }

 private:
  bool holds(const char* file) const;
  bool holds_steps() const;
  void check(const Options& options, Command command) const;
  void keep_earlier_run();
  bool has_begun() const;
  void restore_earlier_run() noexcept;
  void forget_earlier_run() noexcept;

  std::filesystem::path folder_;
  std::optional<io::FolderLock> lock_;
  bool was_killed_ = false;  // a program left its lock
  bool held_run_ = false;
  bool has_earlier_run_ = false;  // in the folder .earlier
  bool kept_ = false;
};

}  // namespace palimpsest::cli
