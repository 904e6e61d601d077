#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest::io {

/// What becomes of the orientation in the Exif data of a JPEG file. Cameras store a photo as the sensor lies.
enum class Orientation {
  kUpright,  ///< the picture is turned or mirrored as the Exif data say: as every viewer shows it
  kAsStored  ///< the Exif data are ignored
};

/// Reads a JPEG or PNG file as u8 (H, W, 3) RGB. The first bytes decide the format, not the name. Converts
/// grey, palette and CMYK images, reduces 16 bits to 8 and drops alpha. `orientation` concerns JPEG only.
/// Throws Error(kData), with the path, for a file that is missing, unreadable, truncated (libjpeg alone would
/// fill the rest with grey), corrupt, of another format, or of more than 2^28 pixels.
at::Tensor read_image(const std::filesystem::path& path, Orientation orientation = Orientation::kUpright);

/// Reads a PNG label map as u8 (H, W) class ids: the grey values of 1 to 8 bits, or the indices of a palette
/// image. 16-bit grey is accepted if every value is below 256.
/// Throws Error(kData) as read_image does, and for pictures without ids: RGB, alpha, JPEG.
at::Tensor read_label(const std::filesystem::path& path);

/// Returns the PNG file of a u8 (H, W, 3) RGB or (H, W) grey image, of any strides. The same image gives the
/// same bytes. Throws std::invalid_argument for any other tensor.
std::string encode_png(const at::Tensor& image);
/// Returns the PNG file of class ids, u8 (H, W): a palette image if there is a palette, RGB of each id, else a
/// grey one. Throws std::invalid_argument for any other tensor, and for an id beyond the palette.
std::string encode_png_labels(const at::Tensor& labels,
                              const std::vector<std::array<uint8_t, 3>>& palette = {});

/// Writes encode_png(image) as an AtomicFile (io/atomic_file.h), with its errors.
void write_png(const std::filesystem::path& path, const at::Tensor& image);

/// Writes a u8 (H, W, 3) RGB image as a baseline JPEG file without chroma subsampling (4:4:4); quality 1 to
/// 100. Writes atomically, as write_png does. Throws std::invalid_argument for any other tensor or quality.
void write_jpeg(const std::filesystem::path& path, const at::Tensor& image, int quality = 93);

}  // namespace palimpsest::io
