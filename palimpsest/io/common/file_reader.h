#pragma once

#include "palimpsest/base/error.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace palimpsest::io {

/// A regular file, open for reading from front to back. Throws Error of the given kind, with the path and the
/// reason.
class FileReader {
 public:
  FileReader(std::filesystem::path path, ErrorKind kind);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  uint64_t size() const { return size_; }  ///< in bytes, when the file was opened
  /// Reads the next `bytes` bytes. A file that ends before them is an error.
  void read(void* data, std::size_t bytes);

 private:
  [[noreturn]] void fail(int error_number) const;

  std::filesystem::path path_;
  ErrorKind kind_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

}  // namespace palimpsest::io
