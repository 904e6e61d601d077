#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace palimpsest::io {

/// Writes a file so that a reader sees the old one or the whole new one: to a temporary name in the same folder,
/// synced, renamed, folder synced. Missing parent folders are made. Errors (full disk, read-only folder) throw
/// Error(kOutput) naming the path and the system's reason; the temporary file is removed, the old file is untouched.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();  ///< without commit(): removes the temporary file
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);
/// The whole file; throws Error(kData) naming the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

}  // namespace palimpsest::io
