#pragma once

#include <exception>
#include <string>

namespace palimpsest::cli {

/// How the program ends after an exception.
struct Failure {
  std::string line;  ///< one line, no stack trace
  int exit_code;     ///< base/error.h and docs/cli.md list them
};

/// Tells errors of the user (palimpsest::Error has its own kind), exhausted memory (7), libtorch's errors
/// (their first line) and anything else (1) apart.
Failure describe(const std::exception_ptr& failure);

}  // namespace palimpsest::cli
