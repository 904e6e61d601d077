#include "palimpsest/io/folder_lock.h"

#include "palimpsest/base/error.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace palimpsest::io {
namespace {

namespace fs = std::filesystem;

/// Other programs may make and remove the folder and the lock meanwhile, each a few times.
constexpr int kTries = 1000;

bool still_named(int descriptor, const fs::path& path) {
  struct stat open_file, named_file;
  return fstat(descriptor, &open_file) == 0 && ::lstat(path.c_str(), &named_file) == 0 &&
         open_file.st_ino == named_file.st_ino && open_file.st_dev == named_file.st_dev;
}

/// Returns " (process 123)", or "" if the file does not say so.
std::string holder(int descriptor) {
  char text[16] = {};
  const ssize_t count = ::pread(descriptor, text, sizeof text - 1, 0);
  const std::string number(text, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  const bool is_number = !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? " (process " + number + ")" : "";
}

/// Returns whether FolderLock may have made the file: it is empty or holds a process number, and it has one name
/// alone. Any other file belongs to somebody else and must not be written over.
bool is_ours(int descriptor) {
  struct stat file;
  if (fstat(descriptor, &file) != 0 || !S_ISREG(file.st_mode) || file.st_nlink != 1 || file.st_size >= 16)
    return false;
  return file.st_size == 0 || !holder(descriptor).empty();
}

/// Opens a lock that is there, to look at it. Returns -1 if there is none.
int open_present(const fs::path& file) {
  return ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

[[noreturn]] void fail_foreign(const fs::path& file) {
  throw Error(ErrorKind::kOutput,
              "'" + file.string() + "' is no lock of palimpsest: move it away, or name another --output");
}

[[noreturn]] void fail_held(const fs::path& folder, int descriptor) {
  const std::string message = "output folder '" + folder.string() + "' is in use by another palimpsest" +
                              holder(descriptor) + ": wait for its end, or name another --output";
  ::close(descriptor);
  throw Error(ErrorKind::kOutput, message);
}

}  // namespace

void FolderLock::check_free(const fs::path& folder) {
  const int descriptor = open_present(folder / kFile);
  if (descriptor < 0) return;
  if (::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) fail_held(folder, descriptor);
  ::close(descriptor);
}

bool FolderLock::was_left(const fs::path& folder) {
  const int descriptor = open_present(folder / kFile);
  if (descriptor < 0) return false;
  const bool has_number = is_ours(descriptor) && !holder(descriptor).empty();
  ::close(descriptor);
  return has_number;
}

FolderLock::FolderLock(fs::path folder) : folder_(std::move(folder)), file_(folder_ / kFile) {
  try {
    lock();
  } catch (...) {
    remove_empty_folders();
    throw;
  }
}

FolderLock::~FolderLock() {
  if (descriptor_ < 0) return;
  // The name goes before the lock: a program that opened the file meanwhile sees that it has no name.
  if (still_named(descriptor_, file_)) ::unlink(file_.c_str());
  ::close(descriptor_);
  remove_empty_folders();
}

void FolderLock::make_folders() {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path at = folder_; !at.empty() && !fs::exists(at, error); at = at.parent_path())
    missing.push_back(at);
  int reason = ENOTDIR;
  for (auto at = missing.rbegin(); at != missing.rend(); ++at) {
    if (fs::create_directory(*at, error)) made_.push_back(*at);
    if (error) reason = error.value();
  }
  if (!fs::is_directory(folder_, error)) fail(reason);
}

void FolderLock::lock() {
  constexpr int kRefusals = 10;
  int refusals = 0;
  for (int i = 0; i < kTries; ++i) {
    make_folders();
    const int descriptor = ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor < 0 && (errno == ENOENT || errno == EINTR))
      continue;                                                 // another program removed its empty folder
    if (descriptor < 0 && errno == ELOOP) fail_foreign(file_);  // a symbolic link
    if (descriptor < 0) fail(errno);
    const bool locked = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno == EWOULDBLOCK) {
      if (++refusals >= kRefusals) fail_held(folder_, descriptor);
      ::close(descriptor);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // check_free() holds it for a moment
      continue;
    }
    if (still_named(descriptor, file_)) {
      if (!is_ours(descriptor)) {
        ::close(descriptor);
        fail_foreign(file_);
      }
      descriptor_ = descriptor;
      const std::string number = std::to_string(::getpid());
      // The number is for messages alone: a full disk does not matter.
      if (::ftruncate(descriptor, 0) == 0)
        static_cast<void>(::pwrite(descriptor, number.data(), number.size(), 0));
      return;
    }
    ::close(descriptor);  // its holder removed the name between our open and our lock
  }
  fail(EBUSY);
}

void FolderLock::remove_empty_folders() noexcept {
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) ::rmdir(folder->c_str());
  made_.clear();
}

void FolderLock::fail(int error_number) {
  throw Error(ErrorKind::kOutput, "cannot write into '" + folder_.string() +
                                      "': " + std::generic_category().message(error_number) +
                                      " (choose another output folder)");
}

}  // namespace palimpsest::io
