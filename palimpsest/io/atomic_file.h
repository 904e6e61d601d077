#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace palimpsest::io {

/// Writes a file so that a reader sees the old one or the whole new one, even when the machine loses power:
/// to a temporary name in the same folder, synced, renamed, folder synced. Missing parent folders are made; a
/// symbolic link is followed. Errors (full disk, read-only folder, a size limit of the shell) throw
/// Error(kOutput) naming the path and the system's reason; the temporary file is removed, the old file is
/// untouched. Interrupting signals do not disturb it.
///
///   AtomicFile file("runs/a/checkpoint.safetensors");
///   file.write(header.data(), header.size());   // as often as needed: nothing is buffered here
///   file.commit();                              // without it, nothing happened
///
/// The temporary name is ".NAME.K.tmp" with the smallest K that no live writer holds (by flock), so what a
/// killed program leaves behind is reused and overwritten by the next one: leftovers do not pile up.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();  ///< without commit(): removes the temporary file
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends `bytes` bytes. After an error or commit() it throws std::logic_error.
  void write(const void* data, std::size_t bytes);
  /// Makes the new contents the file. Without an error, they survive a crash from here on.
  void commit();

 private:
  void open_temporary();
  void discard() noexcept;
  [[noreturn]] void fail(int error_number);

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;  // open from the constructor to commit() or the first error
};

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);
/// The whole file; throws Error(kData) naming the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

}  // namespace palimpsest::io
