#pragma once

#include <string>
#include <vector>

namespace palimpsest::io {

struct ChildResult {
  int exit_code = 0;   ///< or 128 + the number of the signal that ended it
  std::string errors;  ///< the first 64 KiB of its standard error
};

/// Runs a program and waits for its end. `arguments[0]` is its path, or a name that is looked up in PATH; no
/// shell reads the arguments. The program gets our environment, an empty standard input, and the open file
/// `output` as its standard output. Throws std::system_error if the program cannot start.
ChildResult run_child(const std::vector<std::string>& arguments, int output);

}  // namespace palimpsest::io
