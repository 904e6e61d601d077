#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

namespace palimpsest::io {

/// A JPEG or PNG file (told by its first bytes, not its name) as u8 (H, W, 3) RGB; grey, palette and CMYK
/// images are converted, 16 bits become 8, alpha is dropped, an Exif rotation is not applied. Throws
/// Error(kData) naming the file: missing, unreadable, truncated (libjpeg alone would fill the rest with
/// grey), corrupt, another format, more than 2^28 pixels.
at::Tensor read_image(const std::filesystem::path& path);

/// A PNG label map as u8 (H, W) class ids: grey values of 1 to 8 bits as they are, or the indices of a
/// palette image. 16-bit grey is taken while every value is below 256. Throws Error(kData) naming the file,
/// as read_image, and for pictures that hold no ids: RGB, alpha, JPEG.
at::Tensor read_label(const std::filesystem::path& path);

/// u8 (H, W, 3) RGB or (H, W) grey, any strides, to PNG bytes: the same bytes for the same image.
/// Throws std::invalid_argument for any other tensor.
std::string encode_png(const at::Tensor& image);
/// encode_png into a file; the write is atomic (Error(kOutput)).
void write_png(const std::filesystem::path& path, const at::Tensor& image);

/// u8 (H, W, 3) RGB to a baseline JPEG file, 4:4:4; quality 1 to 100. Atomic, as write_png.
void write_jpeg(const std::filesystem::path& path, const at::Tensor& image, int quality = 93);

}  // namespace palimpsest::io
