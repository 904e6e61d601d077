#pragma once

#include "palimpsest/cli/options.h"

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::cli {

/// A command line after reading.
struct Invocation {
  Options options;   ///< complete and checked; options.run.command is the command
  std::string text;  ///< --help or --version: print this and stop
};

/// Reads the command line and the files that it names. A later source overrides an earlier one:
///   1. the defaults (demo has defaults of its own, cli/demo.h)
///   2. the configuration in the checkpoint (eval, predict, export, info CHECKPOINT), without settings of a
///      machine and without the output folder; it is not read if --config is given
///      train --resume: that of the run in the output folder (cli/resume.h)
///   3. --config FILE
///   4. the flags
/// Throws Error(kUsage) for an unknown command or flag (with the nearest name), a value that does not fit, or
/// a combination that cannot work, and Error(kCheckpoint) if the checkpoint cannot be read or holds no
/// configuration.
Invocation parse_command_line(int argc, const char* const* argv);

std::vector<std::string> command_names();
std::string_view to_string(Command command);

}  // namespace palimpsest::cli
