#pragma once

#include "palimpsest/io/safetensors.h"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::io {

/// One tensor in the header of a safetensors file; offsets count from the end of the header.
struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin, end;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in the header's order
  std::map<std::string, std::string> metadata;
};

/// The longest list in a header, and so the most dimensions of a tensor.
constexpr std::size_t kMaxDimensions = 64;

/// Checks everything but the values; `data_bytes` is the number of bytes after the header. Throws
/// std::invalid_argument with the fault, to which the caller adds the path.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes);

/// Returns the header of `contents` after its length, padded so that the values begin at a multiple of 8.
/// `order` gets the indices of the tensors in the order of their values. Throws as write_safetensors does.
std::string format_safetensors_header(const Safetensors& contents, std::vector<std::size_t>& order);

}  // namespace palimpsest::io
