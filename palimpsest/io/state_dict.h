#pragma once

#include "palimpsest/io/safetensors.h"

#include <filesystem>

namespace palimpsest::io {

/// Reads the state dict in a safetensors file or in a file of torch.save. The first bytes of the file decide
/// which of the two it is. Only a safetensors file has metadata. Memory: the tensors; for torch.save twice as
/// much. Throws as read_safetensors and read_pytorch_file do, and Error(kCheckpoint) for a file of neither
/// kind.
Safetensors read_state_dict(const std::filesystem::path& path);

}  // namespace palimpsest::io
