#pragma once

namespace palimpsest::cli {

/// Runs the whole program: reads the command line and runs the command. An error becomes one line on stderr.
/// Returns the exit status (docs/cli.md).
int run_program(int argc, const char* const* argv);

}  // namespace palimpsest::cli
