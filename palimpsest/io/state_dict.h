#pragma once

#include "palimpsest/io/safetensors.h"

#include <filesystem>

namespace palimpsest::io {

/// Reads the state dict in a safetensors file or in a file of torch.save; the first bytes of the file tell
/// which one it is. Metadata: those of the safetensors file, none for torch.save. Memory: the tensors; for
/// torch.save twice as much. Throws as read_safetensors and read_pytorch_file do, and Error(kCheckpoint) for
/// a file of neither kind.
Safetensors read_state_dict(const std::filesystem::path& path);

}  // namespace palimpsest::io
