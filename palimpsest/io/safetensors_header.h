#pragma once

#include "palimpsest/io/safetensors.h"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::io {

/// One tensor as the header of a safetensors file describes it; offsets count from the end of the header.
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

/// Longer headers are refused, as by the format's own library: the longest of a real model is below 1 MB.
constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Checks everything that can be said without the values; `data_bytes` is what the file holds behind the
/// header. Throws std::invalid_argument saying what is wrong, for the caller to add the file's name.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes);

/// The header of `contents` with the length in front, padded so that the values begin at a multiple of 8;
/// `order` gets the indices of the tensors in the order in which their values follow. Throws as
/// write_safetensors does.
std::string format_safetensors_header(const Safetensors& contents, std::vector<std::size_t>& order);

}  // namespace palimpsest::io
