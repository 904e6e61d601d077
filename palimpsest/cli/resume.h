#pragma once

#include "palimpsest/cli/options.h"

#include <filesystem>
#include <string>

// What --resume continues with: the configuration in the checkpoint, the settings of this machine in
// config.toml, and what the user gives beside them.
namespace palimpsest::cli {

/// Metadata of a checkpoint: the row of the papers (run.row) that its run was begun as.
inline constexpr const char* kRowKey = "row";

/// Returns how messages name the configuration in a checkpoint: "run/checkpoint.safetensors (stored configuration)".
std::string name_of_stored(const std::filesystem::path& checkpoint);

/// Sets the configuration of the run in `folder`: the checkpoint's, or config.toml's if there is no
/// checkpoint yet, and in both cases the settings of this machine in config.toml. Notes settings of an edited
/// config.toml, which do not count, and a config.toml that cannot be read. Sets run.old_shuffle,
/// run.stored_row and run.stored_data. Throws Error(kUsage) if run.row is another one than that of the
/// checkpoint's run. Nothing counts as given by the user. Returns false if no configuration of a checkpoint's
/// run was found: the user's settings then count alone. Throws as read_toml and read_checkpoint_metadata do.
bool read_resumed(Options& options, const std::filesystem::path& folder);

/// Compares the effective options with the `resumed` ones that read_resumed set. Throws Error(kUsage) for a
/// change that no run can go on with, such as another model or batch; adds a note to run.resume_notes for any
/// other.
void check_resumed(Options& options, const Options& resumed);

}  // namespace palimpsest::cli
