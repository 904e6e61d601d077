#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::io {

/// The contents of a safetensors file, in file order.
struct Safetensors {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::map<std::string, std::string> metadata;

  const at::Tensor* find(const std::string& name) const;  ///< nullptr when absent
};

/// Throws Error(kCheckpoint) naming the file and what is wrong: missing, truncated, not a safetensors file.
Safetensors read_safetensors(const std::filesystem::path& path);
/// Atomic (io/atomic_file.h). f32, f64, f16, bf16, i64, i32, i16, u8, i8, bool; any strides.
void write_safetensors(const std::filesystem::path& path, const Safetensors& contents);

}  // namespace palimpsest::io
