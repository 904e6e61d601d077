#pragma once

#include "palimpsest/cli/options.h"

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::cli {

/// What the command line asks for.
struct Invocation {
  Options options;   ///< complete and checked; options.run.command says what to do
  std::string text;  ///< --help or --version: print this and stop
};

/// Reads the command line, and with it the files that it names. Later wins:
///   defaults (demo: its own, cli/demo.h) < the checkpoint's own configuration (eval, predict, info
///   CHECKPOINT; train --resume: the folder's)
///            < --config FILE < flags
/// Throws Error(kUsage): unknown command or flag (with the nearest name), a value that does not fit, a
/// combination that cannot work; Error(kCheckpoint) when the checkpoint cannot be read or holds no
/// configuration.
Invocation parse_command_line(int argc, const char* const* argv);

std::vector<std::string> command_names();
std::string_view to_string(Command command);

}  // namespace palimpsest::cli
