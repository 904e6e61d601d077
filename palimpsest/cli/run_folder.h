#pragma once

#include "palimpsest/cli/options.h"

namespace palimpsest::cli {

/// Protects a training run that is already in the output folder: a run begins there only with --resume
/// (continue it) or --overwrite (replace it). Changes nothing. Throws Error(kUsage) without an output folder,
/// Error(kOutput) if there is a run and neither flag, and Error(kCheckpoint) if there is nothing to resume.
void check_run_folder(const Options& options);

}  // namespace palimpsest::cli
