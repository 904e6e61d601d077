#include "palimpsest/io/pytorch_file.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/common/child_process.h"
#include "palimpsest/io/common/file_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

namespace palimpsest::io {

extern const char kBuildPython[];
extern const char kStateDictScript[];

namespace {

// The script's exit codes.
constexpr int kNoTorch = 3;
constexpr int kBadFile = 4;
constexpr int kBadOutput = 5;
constexpr int kOldTorch = 6;

/// A file without a name, which the system removes however the program ends.
class TemporaryFile {
 public:
  TemporaryFile() {
    if (const char* folder = std::getenv("TMPDIR"); folder != nullptr && *folder != '\0') folder_ = folder;
    std::string name = (folder_ / "palimpsest-XXXXXX").string();
    descriptor_ = mkostemp(name.data(), O_CLOEXEC);
    if (descriptor_ < 0) fail(std::generic_category().message(errno));
    ::unlink(name.c_str());
  }
  ~TemporaryFile() { ::close(descriptor_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::filesystem::path path() const { return "/dev/fd/" + std::to_string(descriptor_); }
  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(ErrorKind::kOutput, "cannot write a temporary file in '" + folder_.string() + "': " + reason +
                                        "; set TMPDIR to a folder with room for the weights");
  }

 private:
  std::filesystem::path folder_ = "/tmp";
  int descriptor_ = -1;
};

std::string first_bytes(const std::filesystem::path& path) {
  FileReader file(path, ErrorKind::kCheckpoint);
  std::string bytes(std::min<uint64_t>(file.size(), 4), '\0');
  file.read(bytes.data(), bytes.size());
  return bytes;
}

std::string python() {
  const char* chosen = std::getenv("PALIMPSEST_PYTHON");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  std::error_code ignored;
  // The environment that built an installed library may be gone.
  return std::filesystem::exists(kBuildPython, ignored) ? kBuildPython : "python3";
}

[[noreturn]] void no_python(const std::filesystem::path& path, const std::string& reason) {
  throw Error(ErrorKind::kUsage,
              "cannot load '" + path.string() + "': files of torch.save are read by Python, and " + reason +
                  "; set PALIMPSEST_PYTHON to a Python that has torch, or save the state dict as "
                  ".safetensors there");
}

std::string last_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);  // npos + 1 is 0
}

}  // namespace

bool starts_as_pytorch_file(std::string_view bytes) {
  // Before torch 1.6, torch.save wrote a pickle of protocol 2 that begins with this number.
  return bytes.starts_with("PK\x03\x04") || bytes.starts_with("\x80\x02\x8a\x0a");
}

bool is_pytorch_file(const std::filesystem::path& path) {
  return starts_as_pytorch_file(first_bytes(path));
}

Safetensors read_pytorch_file(const std::filesystem::path& path) {
  first_bytes(path);  // throws if the file cannot be read
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) absolute = path;  // no current folder: the path is absolute, or Python names it
  const TemporaryFile tensors;
  const std::string interpreter = python();
  ChildResult child;
  try {
    // -I: neither PYTHONPATH, nor the current folder, nor packages of the user's home folder decide what
    // runs.
    child = run_child({interpreter, "-I", "-c", kStateDictScript, absolute.string()}, tensors.descriptor());
  } catch (const std::system_error& error) {
    no_python(path, "'" + interpreter + "' cannot be started (" + error.code().message() + ")");
  }
  const std::string reason = last_line(child.errors);
  if (child.exit_code == kNoTorch) no_python(path, "'" + interpreter + "' has no torch (" + reason + ")");
  if (child.exit_code == kOldTorch) no_python(path, "'" + interpreter + "' is not safe: " + reason);
  if (child.exit_code == kBadFile)
    throw Error(ErrorKind::kCheckpoint, "cannot load '" + path.string() + "': " + reason);
  if (child.exit_code == kBadOutput) tensors.fail(reason);
  if (child.exit_code != 0)
    no_python(path, "'" + interpreter + "' ended with exit code " + std::to_string(child.exit_code) + " (" +
                        reason + ")");
  try {
    return read_safetensors(tensors.path());
  } catch (const Error& error) {
    std::string reason = error.what();
    const std::string name = tensors.path().string();
    if (const std::size_t at = reason.find(name); at != std::string::npos)
      reason.replace(at, name.size(), path.string());
    throw Error(error.kind(), reason);
  }
}

}  // namespace palimpsest::io
