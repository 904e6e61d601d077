#pragma once

namespace palimpsest::cli {

/// The whole program: reads the command line, runs the command, tells of an error in one line on stderr.
/// Returns the exit status (docs/cli.md).
int run_program(int argc, const char* const* argv);

/// Ends the process with all output written, and without libtorch's static destructors: taking down its
/// registry of operators is a fifth of the time of a short command, after its last line.
[[noreturn]] void end_process(int exit_status);

}  // namespace palimpsest::cli
