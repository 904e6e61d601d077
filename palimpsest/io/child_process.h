#pragma once

#include <string>
#include <vector>

namespace palimpsest::io {

struct ChildResult {
  int exit_code = 0;   ///< 128 + the signal that ended it
  std::string errors;  ///< its standard error, at most 64 KiB of it
};

/// Runs a program and waits for its end: `arguments[0]` is looked for in PATH unless it holds a slash, the
/// environment is ours, standard input is empty, standard output goes to the open file `output`. No shell
/// reads the arguments. Throws std::system_error when the program cannot be started, with the system's
/// reason.
ChildResult run_child(const std::vector<std::string>& arguments, int output);

}  // namespace palimpsest::io
