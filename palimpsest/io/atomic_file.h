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
/// Throws Error(kOutput) for a pipe or a device in the place of the file, for a full disk, a read-only folder or a size limit of the shell, with the path and
/// the system's reason. It then removes the temporary file and leaves the old file. Signals that interrupt
/// system calls do no harm.
///
/// The temporary file is always new: nobody can prepare it. Its name is ".NAME.K.tmp" with the smallest K
/// that is free. The next writer removes the file that a killed program of the same user left (nobody holds
/// its flock), so leftovers do not accumulate. If others have taken the first names, the name has eight
/// random letters in place of K.
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

/// Removes the temporary files of `path` that killed programs of this user left. Never throws for files that it
/// cannot remove.
void remove_leftovers(const std::filesystem::path& path);
/// Writes `bytes` as an AtomicFile does.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);
/// Returns the contents of a file. Throws Error(kData) with the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

}  // namespace palimpsest::io
