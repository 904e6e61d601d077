#pragma once

#include "palimpsest/io/safetensors.h"

#include <filesystem>
#include <functional>

namespace palimpsest::io {

/// Judges a state dict by its names, shapes and types, and throws if it is not wanted.
using StateDictCheck = std::function<void(const Safetensors&)>;

/// Reads the state dict in a safetensors file or in a file of torch.save. The first bytes of the file decide
/// which of the two it is. Only a safetensors file has metadata. Memory: the tensors; for torch.save twice as
/// much. Throws as read_safetensors and read_pytorch_file do, and Error(kCheckpoint) for a file of neither
/// kind. `check` is called with the tensors before the values of a safetensors file are read: it must read no
/// values.
Safetensors read_state_dict(const std::filesystem::path& path, const StateDictCheck& check = nullptr);

}  // namespace palimpsest::io
