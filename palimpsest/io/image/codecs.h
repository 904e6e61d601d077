#pragma once

#include "palimpsest/io/image.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

/// The two image libraries behind io/image.h. Both report errors by longjmp, which skips destructors. So
/// every call into them runs in a function `attempt`, whose argument owns nothing.
namespace palimpsest::io::codecs {

/// What the first bytes of a JPEG file say.
struct JpegHeader {
  ImageSize size;   ///< of the upright picture
  int orientation;  ///< by the Exif data, 1 to 8; 1 (upright) if they are ignored
};

/// Return what the header of the picture in `bytes` says. `path` is for errors.
JpegHeader header_of_jpeg(std::string_view bytes, const std::filesystem::path& path, Orientation orientation);
ImageSize size_of_png(std::string_view bytes, const std::filesystem::path& path);
/// Returns the text "Software" before the pixels, or "".
std::string software_of_png(std::string_view bytes, const std::filesystem::path& path);
/// Decode the picture in `bytes` to u8 (H, W, 3): the whole one if `part` is null.
at::Tensor decode_jpeg(std::string_view bytes, const std::filesystem::path& path, Orientation orientation,
                       const ImagePart* part);
at::Tensor decode_png(std::string_view bytes, const std::filesystem::path& path);
/// Decodes the class ids in `bytes` to u8 (H, W).
at::Tensor decode_png_labels(std::string_view bytes, const std::filesystem::path& path);
/// Return the file of a contiguous u8 picture: (H, W, 3), or for PNG also (H, W).
std::string encode_jpeg(const at::Tensor& image, int quality);
std::string encode_png(const at::Tensor& image);
std::string encode_png_labels(const at::Tensor& labels, const std::vector<std::array<uint8_t, 3>>& palette);

/// Throws Error(kData): "cannot read image 'PATH': REASON".
[[noreturn]] void fail_to_read(const std::filesystem::path& path, const std::string& reason);
/// The most pixels of a picture: 480 MB as RGB. The largest cameras have 151 million.
inline constexpr uint64_t kMaxPixels = 160'000'000;
/// Throws Error(kData) for more than kMaxPixels, because a header of a few bytes can claim gigabytes.
void check_pixels(const std::filesystem::path& path, uint64_t height, uint64_t width);

}  // namespace palimpsest::io::codecs
