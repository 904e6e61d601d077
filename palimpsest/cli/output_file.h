#pragma once

#include "palimpsest/cli/options.h"

#include <filesystem>

namespace palimpsest::cli {

/// Throws Error(kOutput) if writing `file` would replace one and --overwrite is not given, or would write into the
/// folder of a training at work. Follows symbolic links, as writing does. `flag` names the file: "--output". Call
/// it before the work, and again before the file is written: much may have happened meanwhile.
void check_output_file(const std::filesystem::path& file, const char* flag, const Options& options);

/// Does the second call's part: throws if a training holds the folder of `file`.
void check_not_in_use(const std::filesystem::path& file);

}  // namespace palimpsest::cli
