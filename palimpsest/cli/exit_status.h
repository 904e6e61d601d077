#pragma once

#include <exception>
#include <string>

namespace palimpsest::cli {

/// How the program ends after an exception.
struct ExitStatus {
  std::string message;  ///< one line, no stack trace
  int code;             ///< listed in base/error.h and docs/cli.md
};

/// Distinguishes errors of the user (palimpsest::Error has a kind), exhausted memory (7), errors of libtorch
/// (their first line) and anything else (1).
ExitStatus exit_status_of(const std::exception_ptr& failure);

}  // namespace palimpsest::cli
