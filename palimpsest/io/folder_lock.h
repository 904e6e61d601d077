#pragma once

#include <filesystem>
#include <vector>

namespace palimpsest::io {

/// Holds a folder for one program: a second lock of the folder is refused until this object or its process is
/// gone, by SIGKILL too. Makes the folder and its parents if they are missing. The destructor removes those
/// that are empty then.
///
/// The lock is a flock of FOLDER/.lock, which holds the process number; a leftover of a killed program is
/// locked again. Where the file system has no flock there is no lock.
///
/// Throws Error(kOutput) if another program holds the folder, naming its process, if FOLDER/.lock is a file of
/// somebody else, which stays as it is, or if the folder cannot be written.
class FolderLock {
 public:
  /// The name of the lock in the folder.
  static constexpr const char* kFile = ".lock";

  explicit FolderLock(std::filesystem::path folder);
  /// Throws as the constructor does if another program holds the folder now. Makes and changes nothing.
  static void check_free(const std::filesystem::path& folder);
  /// Returns whether the folder has a lock with a process number, as a killed program leaves it.
  static bool was_left(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  void make_folders();
  void lock();
  void remove_empty_folders() noexcept;
  [[noreturn]] void fail(int error_number);

  std::filesystem::path folder_, file_;
  std::vector<std::filesystem::path> made_;  // by this object, parents first
  int descriptor_ = -1;
};

}  // namespace palimpsest::io
