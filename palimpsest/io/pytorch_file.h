#pragma once

#include "palimpsest/io/safetensors.h"

#include <filesystem>
#include <string_view>

namespace palimpsest::io {

/// True if a file with these first bytes (4 at least) is a file of torch.save: a zip archive, or a pickle
/// (before torch 1.6).
bool starts_as_pytorch_file(std::string_view bytes);
/// True if the file begins so. Throws Error(kCheckpoint) if it cannot be read.
bool is_pytorch_file(const std::filesystem::path& path);

/// Reads the state dict in a file of torch.save (.pth, .pt, .bin): the dict itself, or the dict in a training
/// checkpoint under "state_dict", "model", "model_state_dict" or "model_state". It is read by a Python with
/// torch in a child process (io/state_dict_to_safetensors.py, which this library carries), which
/// executes nothing of the file. That Python is PALIMPSEST_PYTHON, else the one that the library was built
/// with, else python3. Memory: the file twice. Throws Error(kUsage), with the way out, if there is no such
/// Python; Error(kCheckpoint) if the file is missing, truncated, a pickle of more than tensors, or without a
/// state dict; Error(kOutput) if the temporary folder is full.
Safetensors read_pytorch_file(const std::filesystem::path& path);

}  // namespace palimpsest::io
