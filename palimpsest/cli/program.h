#pragma once

namespace palimpsest::cli {

/// The whole program: reads the command line, runs the command, tells of an error in one line on stderr.
/// Returns the exit status (docs/cli.md).
int run_program(int argc, const char* const* argv);

}  // namespace palimpsest::cli
