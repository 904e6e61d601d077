#pragma once

#include <stdexcept>
#include <string>

namespace palimpsest {

/// What went wrong, as a user sees it. The value is the exit code of the program (docs/cli.md lists them).
enum class ErrorKind {
  kInternal = 1,    ///< anything not foreseen: a bug of ours
  kUsage = 2,       ///< unknown option, name or value; an impossible combination
  kData = 3,        ///< an image, label or folder that is missing, unreadable or inconsistent
  kCheckpoint = 4,  ///< a checkpoint that is truncated, foreign, or of another architecture
  kDiverged = 5,    ///< the loss became NaN or infinite
  kOutput = 6,      ///< a result that cannot be written: full disk, read-only folder
  kMemory = 7,      ///< out of memory, or above the limit that the user set
};

/// An error with one clear line: what was required, what was given, which file, key or value, and the way
/// out.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  ErrorKind kind() const noexcept { return kind_; }
  int exit_code() const noexcept { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

}  // namespace palimpsest
