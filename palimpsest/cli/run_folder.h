#pragma once

#include "palimpsest/cli/options.h"

namespace palimpsest::cli {

/// Protects a training run that is already in the output folder: another one begins there only with --resume
/// (continue it) or --overwrite (replace it). Looks, changes nothing. Throws Error(kUsage) without an output
/// folder, Error(kOutput) when there is a run and neither flag, Error(kCheckpoint) when there is nothing to
/// resume.
void check_run_folder(const Options& options);

}  // namespace palimpsest::cli
