#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace palimpsest::io {

/// Writes a file so that a reader sees the old file or the whole new file, even if the machine loses power:
/// it writes and syncs a temporary file in the same folder, renames it, and syncs the folder. Makes missing
/// parent folders, and follows a symbolic link.
///
///   AtomicFile file("runs/a/checkpoint.safetensors");
///   file.write(header.data(), header.size());   // any number of times; not buffered
///   file.commit();                              // without this call the old file stays
///
/// Throws Error(kOutput) for a full disk, a read-only folder or a size limit of the shell, with the path and
/// the system's reason. It then removes the temporary file and leaves the old file. Signals that interrupt
/// system calls do no harm.
///
/// The temporary name is ".NAME.K.tmp" with the smallest K that no live writer holds (by flock). The next
/// writer reuses and overwrites the file of a killed program, so leftovers do not accumulate.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();  ///< removes the temporary file unless commit() was called
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends `bytes` bytes. Throws std::logic_error after an error or commit().
  void write(const void* data, std::size_t bytes);
  /// Replaces the file. If it returns, the new contents survive a crash.
  void commit();

 private:
  void open_temporary();
  void discard() noexcept;
  [[noreturn]] void fail(int error_number);

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;  // open from the constructor to commit() or the first error
};

/// Writes `bytes` as an AtomicFile does.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);
/// Returns the contents of a file. Throws Error(kData) with the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

}  // namespace palimpsest::io
