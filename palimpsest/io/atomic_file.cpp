#include "palimpsest/io/atomic_file.h"

#include "palimpsest/base/error.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <random>
#include <stdexcept>
#include <system_error>

namespace palimpsest::io {
namespace {

namespace fs = std::filesystem;

// Repeats a system call that a signal interrupted.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// Blocks SIGXFSZ, which kills the program by default: a file above `ulimit -f` then gives an error code.
class HoldFileSizeSignal {
 public:
  HoldFileSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~HoldFileSizeSignal() {
    const int error_number = errno;
    const timespec now{};
    // Takes the signal that our write raised: it would kill the program when it is unblocked.
    if (!sigismember(&before_, SIGXFSZ)) {
      uninterrupted([&] { return sigtimedwait(&signal_, nullptr, &now); });
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error_number;
  }

 private:
  sigset_t signal_, before_;
};

const char* way_out(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return " (free some space, or choose another output folder)";
    case EFBIG:
      return " (raise the file size limit, see 'ulimit -f')";
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOTDIR:
    case EISDIR:
      return " (choose another output folder)";
    default:
      return "";
  }
}

bool same_file(int descriptor, const fs::path& path) {
  struct stat open_file, named_file;
  return fstat(descriptor, &open_file) == 0 && ::lstat(path.c_str(), &named_file) == 0 &&
         open_file.st_ino == named_file.st_ino && open_file.st_dev == named_file.st_dev;
}

/// Removes the file if a killed writer of this user left it: nobody holds its lock. Leaves everything else,
/// which others may have put there: files of other users, pipes, links. Returns whether the name may be free
/// now.
bool remove_leftover(const fs::path& path) {
  // O_NONBLOCK: opening a pipe would wait for its other end.
  const int descriptor =
      uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); });
  if (descriptor < 0) return errno == ENOENT;
  struct stat status{};
  const bool is_ours =
      fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid();
  bool removed = is_ours && flock(descriptor, LOCK_EX | LOCK_NB) == 0;
  // Its writer may have renamed it between our open and our lock: then the name is free, or has a new file.
  if (removed && same_file(descriptor, path)) removed = ::unlink(path.c_str()) == 0;
  ::close(descriptor);
  return removed;
}

// Temporary names that a later writer finds again, so that leftovers do not accumulate.
constexpr int kNumbered = 8;

/// Returns the temporary file of `path` with this K.
fs::path temporary_file(const fs::path& path, const std::string& k) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  // A file name may have 255 bytes, and the temporary one is a few bytes longer.
  return folder / ('.' + path.filename().string().substr(0, 200) + '.' + k + ".tmp");
}

/// Eight letters that nobody can foresee.
std::string random_letters() {
  std::random_device random;
  std::string letters;
  for (int i = 0; i < 8; ++i) letters += static_cast<char>('a' + random() % 26);
  return letters;
}

}  // namespace

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  if (fs::is_symlink(path_, error)) {
    const fs::path target = fs::weakly_canonical(path_, error);
    if (!error) path_ = target;
  }
  // The check comes now: rename() would fail too, but only after gigabytes were written.
  const fs::file_status present = fs::status(path_, error);
  if (path_.filename().empty() || fs::is_directory(present)) fail(EISDIR);
  if (fs::exists(present) && !fs::is_regular_file(present))
    throw Error(ErrorKind::kOutput, "cannot write '" + path_.string() + "': it is not a regular file");
  if (path_.has_parent_path()) {
    fs::create_directories(path_.parent_path(), error);
    if (error) fail(error.value());
  }
  open_temporary();
}

AtomicFile::~AtomicFile() {
  discard();
}

void AtomicFile::open_temporary() {
  constexpr int kTries = 64;
  int k = 0;  // others may have taken all of the numbered names
  for (int i = 0; i < kTries; ++i) {
    const fs::path candidate = temporary_file(path_, k < kNumbered ? std::to_string(k) : random_letters());
    // O_EXCL: the file is new and ours. A file that another prepared there might be readable to others, or a
    // pipe.
    const int descriptor = uninterrupted([&] {
      return ::open(candidate.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    });
    if (descriptor < 0 && errno != EEXIST) fail(errno);
    if (descriptor < 0) {
      if (!remove_leftover(candidate)) ++k;  // a live writer of the same file has this name, or another user
      continue;
    }
    // Another writer may take the file for a leftover before it is locked.
    const bool locked =
        flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;  // some systems have none
    if (locked && same_file(descriptor, candidate)) {
      descriptor_ = descriptor;
      temporary_ = candidate;
      return;
    }
    ::close(descriptor);
  }
  fail(EBUSY);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  if (descriptor_ < 0)
    throw std::logic_error("AtomicFile::write after commit() or an error: " + path_.string());
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // one system call takes 2 GiB at most
  const HoldFileSizeSignal hold;
  for (auto* from = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t written =
        uninterrupted([&] { return ::write(descriptor_, from, std::min(bytes, kMostAtOnce)); });
    if (written <= 0) fail(written < 0 ? errno : EIO);
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (descriptor_ < 0)
    throw std::logic_error("AtomicFile::commit after commit() or an error: " + path_.string());
  if (uninterrupted([&] { return fsync(descriptor_); }) != 0) fail(errno);
  // In a folder where others may write, the name may have another file by now.
  if (!same_file(descriptor_, temporary_)) fail(ESTALE);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  // The file is closed after the rename: until then the lock keeps other writers from truncating it.
  ::close(descriptor_);
  descriptor_ = -1;

  const fs::path folder = path_.has_parent_path() ? path_.parent_path() : fs::path(".");
  const int handle =
      uninterrupted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (handle < 0) return;  // a folder without read permission: the data is synced, its name cannot be
  const int status = uninterrupted([&] { return fsync(handle); });
  const int error_number = errno;
  ::close(handle);
  // EINVAL: the file system does not sync folders.
  if (status != 0 && error_number != EINVAL) fail(error_number);
}

void AtomicFile::discard() noexcept {
  if (descriptor_ < 0) return;
  if (same_file(descriptor_, temporary_)) ::unlink(temporary_.c_str());
  ::close(descriptor_);
  descriptor_ = -1;
}

void AtomicFile::fail(int error_number) {
  discard();
  throw Error(ErrorKind::kOutput, "cannot write '" + path_.string() + "': " +
                                      std::generic_category().message(error_number) + way_out(error_number));
}

void remove_leftovers(const fs::path& path) {
  for (int k = 0; k < kNumbered; ++k) remove_leftover(temporary_file(path, std::to_string(k)));
}

void write_file_atomically(const fs::path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace palimpsest::io
