#pragma once

#include "palimpsest/cli/options.h"

#include <filesystem>

namespace palimpsest::cli {

/// Throws Error(kOutput) if writing `file` would replace one and --overwrite is not given, or would write into the
/// folder of a training at work. Follows symbolic links, as writing does. `flag` names the file: "--output". Call
/// it before the work begins.
void check_output_file(const std::filesystem::path& file, const char* flag, const Options& options);

/// Throws Error(kOutput) if a training holds the folder of `file`. Call it just before the file is written: the
/// training may have begun during the work.
void check_not_in_use(const std::filesystem::path& file);

}  // namespace palimpsest::cli
