#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::io {

/// The contents of a safetensors file, in the order of its header.
/// The format (github.com/huggingface/safetensors): 8 bytes, little-endian: the header's length; the header,
/// JSON:
/// {"__metadata__": {key: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...},
/// padded with spaces; then the values, row-major and little-endian, without holes. No code, no pickles.
struct Safetensors {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::map<std::string, std::string> metadata;

  const at::Tensor* find(const std::string& name) const;  ///< nullptr when absent
};

/// Reads all tensors into new CPU memory; nothing else of the file's size is allocated.
/// Throws Error(kCheckpoint) naming the file and what is wrong: missing, truncated, not a safetensors file
/// (every length, name, shape and offset is checked, so that hostile files end here, too), or an element type
/// we do not have.
Safetensors read_safetensors(const std::filesystem::path& path);

/// Atomic (io/atomic_file.h). f32, f64, f16, bf16, i64, i32, i16, u8, i8, bool; any strides, any device.
/// Same contents, same bytes. The header keeps the order given; the values lie with wider elements first, so
/// that each tensor is aligned for readers that map the file. Memory: at most 4 MiB beside the tensors, for
/// those not contiguous. Throws Error(kOutput) for what the system refuses, std::invalid_argument for what
/// the format cannot hold: other element types, undefined or sparse tensors, a name twice, the name
/// "__metadata__", text that is not UTF-8.
void write_safetensors(const std::filesystem::path& path, const Safetensors& contents);

}  // namespace palimpsest::io
