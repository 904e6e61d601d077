#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::io {

/// The contents of a safetensors file, in the order of its header.
///
/// The format has three parts and no code:
///   8 bytes   the length of the header, little-endian
///   header    JSON, padded with spaces: {"__metadata__": {key: text},
///             name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
///   values    row-major and little-endian, without gaps
/// Source: github.com/huggingface/safetensors.
struct Safetensors {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::map<std::string, std::string> metadata;

  const at::Tensor* find(const std::string& name) const;  ///< nullptr if there is no such tensor
};

/// Longer headers are neither read nor written: a parsed header takes up to 20 times its bytes. The headers of real
/// models are below 1 MB; the format's own library accepts 100 MB.
inline constexpr uint64_t kMaxSafetensorsHeader = uint64_t{1} << 24;

/// Reads all tensors into new CPU memory, and allocates nothing else of the file's size.
/// Throws Error(kCheckpoint), with the path and the fault, for a file that is missing, truncated or no
/// safetensors file, for an element type that write_safetensors does not have, for a header above 16 MiB and
/// for more than 64 dimensions. Every length, name, shape and offset is checked before memory of its size is
/// taken, so a hostile file does no harm.
Safetensors read_safetensors(const std::filesystem::path& path);

/// Reads the header alone: the tensors have their names, shapes and types, and no values (they are on the
/// meta device). Use it to judge a file before gigabytes are read. Checks the whole header, as
/// read_safetensors does.
Safetensors read_safetensors_header(const std::filesystem::path& path);

/// Writes tensors of f32, f64, f16, bf16, i64, i32, i16, u8, i8 or bool, of any strides and on any device.
/// The write is atomic and makes missing folders (io/atomic_file.h). The same contents give the same bytes.
/// The header keeps the given order. The values of wider element types come first, so that each tensor is
/// aligned for readers that map the file. Memory: at most 4 MiB beside the tensors, if one is not contiguous.
/// Throws Error(kOutput) as AtomicFile does, and std::invalid_argument for contents that the format cannot
/// hold: other element types, undefined or sparse tensors, a repeated name, the name "__metadata__", text
/// that is not UTF-8.
void write_safetensors(const std::filesystem::path& path, const Safetensors& contents);

}  // namespace palimpsest::io
