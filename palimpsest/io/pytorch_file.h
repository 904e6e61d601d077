#pragma once

#include "palimpsest/io/safetensors.h"

#include <filesystem>
#include <string_view>

namespace palimpsest::io {

/// Returns whether a file with these first bytes (at least 4) is a file of torch.save: a zip archive, or a
/// pickle (before torch 1.6).
bool starts_as_pytorch_file(std::string_view bytes);
/// Returns whether the file begins so. Throws Error(kCheckpoint) if it cannot be read.
bool is_pytorch_file(const std::filesystem::path& path);

/// Reads the state dict in a file of torch.save (.pth, .pt, .bin): the dict itself, or the dict in a training
/// checkpoint under "state_dict", "model", "model_state_dict" or "model_state". A Python with torch reads it
/// in a child process (io/state_dict_to_safetensors.py, which this library carries) and executes nothing of
/// the file. The Python is PALIMPSEST_PYTHON, else the Python that the library was built with, else python3.
/// Memory: the file twice. Throws Error(kUsage), with the way out, if there is no such Python;
/// Error(kCheckpoint) if the file is missing, truncated, a pickle of more than tensors, or without a state
/// dict; Error(kOutput) if the temporary folder is full.
Safetensors read_pytorch_file(const std::filesystem::path& path);

}  // namespace palimpsest::io
