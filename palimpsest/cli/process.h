#pragma once

#include <atomic>
#include <string>

// Settings and handlers of the whole process.
namespace palimpsest::cli {

struct Options;  // cli/options.h, which main.cpp does not need

/// Sets the number of threads and the memory limit. Call it before a command runs.
void apply_process_options(const Options& options);

/// Installs handlers for SIGINT, SIGTERM and SIGHUP that store the signal's number in the result, which
/// train::train polls. A second signal ends the program at once. A SIGHUP that is ignored (nohup) stays so.
/// Idempotent. Call it on the main thread, whose handlers get a stack of their own.
const std::atomic<int>& install_stop_signals();

/// Returns "signal 2 (SIGINT)".
std::string signal_name(int signal);

/// Ends the process. Writes all output, but does not run libtorch's static destructors: to destroy its
/// registry of operators takes a fifth of the time of a short command.
[[noreturn]] void end_process(int exit_status);

}  // namespace palimpsest::cli
