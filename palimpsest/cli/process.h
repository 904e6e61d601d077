#pragma once

#include <atomic>
#include <string>

// Settings and signals of the whole process.
namespace palimpsest::cli {

struct Options;  // cli/options.h, which main.cpp does not need

/// Sets the number of threads and the memory limit. Call it before a command runs.
void apply_process_options(const Options& options);

/// Starts a thread that receives SIGINT, SIGTERM and SIGHUP. They interrupt no other thread: while a matrix
/// product that oneDNN compiled runs, the stack pointer points into an array on the heap, which a handler would
/// write over. Call it before the program starts threads. A SIGHUP that is ignored (nohup) stays so.
void hold_stop_signals();

/// From now on, stores the number of the first signal in the result, which train::train polls, and lets the second
/// one end the program at once. Until then the first one does. Idempotent.
const std::atomic<int>& poll_stop_signals();

/// Undoes poll_stop_signals(): the first signal ends the program, at once if it has come already.
void end_at_stop_signals();

/// Returns "signal 2 (SIGINT)".
std::string signal_name(int signal);

/// Ends the process. Writes all output, but does not run libtorch's static destructors: to destroy its
/// registry of operators takes a fifth of the time of a short command.
[[noreturn]] void end_process(int exit_status);

}  // namespace palimpsest::cli
