#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

namespace palimpsest::io {

/// A JPEG or PNG file (told by its first bytes, not its name) as u8 (H, W, 3) RGB; grey and palette images are
/// expanded, alpha is dropped. Throws Error(kData) naming the file: missing, unreadable, truncated, another format.
at::Tensor read_image(const std::filesystem::path& path);
/// A PNG label map as u8 (H, W) class ids: 8-bit grey values, or the indices of a palette image.
at::Tensor read_label(const std::filesystem::path& path);

/// u8 (H, W, 3) or (H, W) to PNG bytes; the write is atomic (Error(kOutput)).
std::string encode_png(const at::Tensor& image);
void write_png(const std::filesystem::path& path, const at::Tensor& image);
/// u8 (H, W, 3) to a JPEG file, 4:4:4.
void write_jpeg(const std::filesystem::path& path, const at::Tensor& image, int quality = 93);

}  // namespace palimpsest::io
