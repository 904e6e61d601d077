#include "palimpsest/io/state_dict.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/common/file_reader.h"
#include "palimpsest/io/pytorch_file.h"

namespace palimpsest::io {
namespace {

/// A safetensors file begins with the 8 bytes of its header's length, then the header, which is JSON.
bool starts_as_safetensors(const std::filesystem::path& path) {
  FileReader file(path, ErrorKind::kCheckpoint);
  char bytes[9];
  if (file.size() < sizeof bytes) return false;
  file.read(bytes, sizeof bytes);
  return bytes[8] == '{';
}

void check_format(const std::filesystem::path& path) {
  // For a damaged .safetensors file, the reader's error names the fault.
  if (path.extension() != ".safetensors" && !starts_as_safetensors(path))
    throw Error(ErrorKind::kCheckpoint, "cannot load '" + path.string() +
                                            "': it is neither a safetensors file nor a file of torch.save");
}

}  // namespace

Safetensors read_state_dict(const std::filesystem::path& path, const StateDictCheck& check) {
  if (is_pytorch_file(path)) {
    Safetensors contents = read_pytorch_file(path);
    if (check) check(contents);
    return contents;
  }
  check_format(path);
  if (check) check(read_safetensors_header(path));
  return read_safetensors(path);
}

}  // namespace palimpsest::io
