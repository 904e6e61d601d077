#include "palimpsest/io/common/file_reader.h"

#include "palimpsest/io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace palimpsest::io {

FileReader::FileReader(std::filesystem::path path, ErrorKind kind) : path_(std::move(path)), kind_(kind) {
  // O_NONBLOCK: opening a pipe without a writer would wait forever. Regular files ignore the flag.
  do {
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail(errno);
  struct stat status{};
  int error_number = fstat(descriptor_, &status) != 0 ? errno : 0;
  if (error_number == 0 && S_ISDIR(status.st_mode)) error_number = EISDIR;
  if (error_number == 0 && !S_ISREG(status.st_mode)) error_number = EINVAL;
  if (error_number != 0) {
    ::close(descriptor_);
    fail(error_number);
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

FileReader::~FileReader() {
  ::close(descriptor_);
}

void FileReader::read(void* data, std::size_t bytes) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // one system call gives 2 GiB at most
  for (auto* to = static_cast<char*>(data); bytes > 0;) {
    const ssize_t got = ::read(descriptor_, to, std::min(bytes, kMostAtOnce));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(errno);
    if (got == 0)
      throw Error(kind_, "cannot read '" + path_.string() + "': it became shorter while it was read");
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
}

void FileReader::fail(int error_number) const {
  const std::string reason =
      error_number == EINVAL ? "not a regular file" : std::generic_category().message(error_number);
  throw Error(kind_, "cannot read '" + path_.string() + "': " + reason);
}

std::string read_file(const std::filesystem::path& path) {
  FileReader reader(path, ErrorKind::kData);
  std::string bytes(reader.size(), '\0');
  reader.read(bytes.data(), bytes.size());
  return bytes;
}

}  // namespace palimpsest::io
