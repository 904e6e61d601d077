#pragma once

#include "palimpsest/io/safetensors.h"

#include <filesystem>

namespace palimpsest::io {

/// Whether the file begins as those of torch.save do: a zip archive, or a pickle (before torch 1.6).
/// Throws Error(kCheckpoint) when it cannot be read.
bool is_pytorch_file(const std::filesystem::path& path);

/// The state dict in a file of torch.save (.pth, .pt, .bin): the dict itself, or the one in a training
/// checkpoint under "state_dict", "model", "model_state_dict" or "model_state". Read by a Python with torch
/// in a child process (io/state_dict_to_safetensors.py, which this library carries) that runs nothing of
/// the file: PALIMPSEST_PYTHON, else the Python that the library was built with, else python3.
/// Memory: the file twice. Throws Error(kUsage) naming the way out when there is no such Python,
/// Error(kCheckpoint) when the file is missing, truncated, a pickle of more than tensors, or holds no state
/// dict, Error(kOutput) when the temporary folder is full.
Safetensors read_pytorch_file(const std::filesystem::path& path);

/// The state dict in a file of either kind, told apart by their first bytes. Errors of both.
Safetensors read_state_dict(const std::filesystem::path& path);

}  // namespace palimpsest::io
