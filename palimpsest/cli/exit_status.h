#pragma once

#include <exception>
#include <string>

namespace palimpsest::cli {

/// How the program ends after an exception.
struct ExitStatus {
  std::string message;  ///< one line, no stack trace
  int code;             ///< listed in base/error.h and docs/cli.md
};

/// Returns the status for an exception. A palimpsest::Error has its own code. Exhausted memory gives 7; a
/// collective of libtorch that failed gives 8; too few values for a batch normalization, or a refused
/// PALIMPSEST_... variable, gives 2; anything else gives 1. The message is the first line of the exception's
/// text.
ExitStatus exit_status_of(const std::exception_ptr& failure);

}  // namespace palimpsest::cli
