#pragma once

#include <stdexcept>
#include <string>

namespace palimpsest {

/// The kind of an error, for the user. Its value is the program's exit code (docs/cli.md lists them).
enum class ErrorKind {
  kInternal = 1,    ///< a bug of ours
  kUsage = 2,       ///< an unknown option, name or value; options that contradict each other
  kData = 3,        ///< an image, label or folder that is missing, unreadable or inconsistent
  kCheckpoint = 4,  ///< a checkpoint that is truncated, foreign, or of another architecture
  kDiverged = 5,    ///< the loss became NaN or infinite
  kOutput = 6,      ///< a result cannot be written: full disk, read-only folder
  kMemory = 7,      ///< out of memory, or above the user's limit
  kPeer = 8,        ///< another process of a distributed run is gone, late, or has failed
};

/// An error whose message is one line: the requirement, the value that was given, its file or key, and the
/// way out.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  ErrorKind kind() const noexcept { return kind_; }
  int exit_code() const noexcept { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

}  // namespace palimpsest
