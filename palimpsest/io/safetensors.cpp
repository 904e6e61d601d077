#include "palimpsest/io/safetensors.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/common/file_reader.h"
#include "palimpsest/io/pytorch_file.h"
#include "palimpsest/io/safetensors/header.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace palimpsest::io {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and tensors are copied as they lie");

constexpr int64_t kCopyBytes = int64_t{4} << 20;  // per copy of a tensor that is not contiguous

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& reason) {
  throw Error(ErrorKind::kCheckpoint, "cannot load '" + path.string() + "': " + reason);
}

void write_values(AtomicFile& file, const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (bytes == 0) return;
  const bool in_place = tensor.is_contiguous() && tensor.device().is_cpu() && !tensor.is_neg();
  if (in_place || bytes <= kCopyBytes) {
    const at::Tensor contiguous = tensor.cpu().resolve_neg().contiguous();
    file.write(contiguous.const_data_ptr(), contiguous.nbytes());
    return;
  }
  const int64_t rows = tensor.size(0), row_bytes = bytes / rows;
  if (row_bytes > kCopyBytes) {
    for (int64_t i = 0; i < rows; ++i) write_values(file, tensor.select(0, i));
  } else {
    const int64_t step = kCopyBytes / row_bytes;
    for (int64_t i = 0; i < rows; i += step)
      write_values(file, tensor.narrow(0, i, std::min(step, rows - i)));
  }
}

// libtorch expects a bool's byte to be 0 or 1; its comparisons of other bytes are undefined.
bool holds_only_bools(const at::Tensor& tensor) {
  const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
  return std::all_of(bytes, bytes + tensor.numel(), [](uint8_t byte) { return byte <= 1; });
}

/// Reads and checks the header. The file then stands at the first value.
SafetensorsHeader read_header(FileReader& file, const std::filesystem::path& path) {
  unsigned char length[8] = {};
  file.read(length, std::min<uint64_t>(file.size(), sizeof length));
  if (starts_as_pytorch_file({reinterpret_cast<const char*>(length), sizeof length}))
    fail(path,
         "it is a file of torch.save (a zip archive or a pickle), not a safetensors file; convert it with "
         "'palimpsest import' (in a program of your own io::read_state_dict reads it)");
  if (file.size() < sizeof length)
    fail(path, "it has " + std::to_string(file.size()) + " bytes: too few for a safetensors file");
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | length[i];
  if (header_bytes > kMaxSafetensorsHeader) {
    fail(path,
         "its header would have " + std::to_string(header_bytes) + " bytes: it is not a safetensors file");
  }
  if (header_bytes > file.size() - 8) {
    fail(path, "its header has " + std::to_string(header_bytes) + " bytes, the file only " +
                   std::to_string(file.size()) + ": it is truncated, or not a safetensors file");
  }
  std::string json(header_bytes, '\0');
  file.read(json.data(), json.size());
  try {
    return parse_safetensors_header(json, file.size() - 8 - header_bytes);
  } catch (const std::invalid_argument& e) {
    fail(path, e.what());
  }
}

}  // namespace

const at::Tensor* Safetensors::find(const std::string& name) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.first == name; });
  return found == tensors.end() ? nullptr : &found->second;
}

Safetensors read_safetensors_header(const std::filesystem::path& path) {
  FileReader file(path, ErrorKind::kCheckpoint);
  SafetensorsHeader header = read_header(file, path);
  Safetensors contents;
  contents.metadata = std::move(header.metadata);
  contents.tensors.reserve(header.entries.size());
  for (auto& entry : header.entries)
    contents.tensors.emplace_back(std::move(entry.name),
                                  at::empty(entry.shape, at::TensorOptions(entry.dtype).device(at::kMeta)));
  return contents;
}

Safetensors read_safetensors(const std::filesystem::path& path) {
  FileReader file(path, ErrorKind::kCheckpoint);
  SafetensorsHeader header = read_header(file, path);
  Safetensors contents;
  contents.metadata = std::move(header.metadata);
  std::vector<std::size_t> order(header.entries.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return header.entries[a].begin < header.entries[b].begin; });
  contents.tensors.resize(order.size());
  for (const std::size_t i : order) {  // in the order of the values: the file is read from front to back
    auto& entry = header.entries[i];
    at::Tensor tensor = at::empty(entry.shape, entry.dtype);
    file.read(tensor.mutable_data_ptr(), tensor.nbytes());
    if (entry.dtype == at::kBool && !holds_only_bools(tensor)) {
      fail(path,
           "tensor '" + printable(shortened(entry.name, 200)) + "' is BOOL and has bytes other than 0 and 1");
    }
    contents.tensors[i] = {std::move(entry.name), std::move(tensor)};
  }
  return contents;
}

void write_safetensors(const std::filesystem::path& path, const Safetensors& contents) {
  const c10::NoGradGuard no_grad;
  std::vector<std::size_t> order;
  const std::string header = format_safetensors_header(contents, order);
  AtomicFile file(path);
  file.write(header.data(), header.size());
  for (const std::size_t i : order) write_values(file, contents.tensors[i].second);
  file.commit();
}

}  // namespace palimpsest::io
