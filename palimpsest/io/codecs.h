#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <string_view>

/// The two image libraries behind io/image.h. Both report errors by longjmp, so every call into them runs
/// inside `attempt`, whose argument must not own anything: a longjmp skips destructors.
namespace palimpsest::io::codecs {

at::Tensor decode_jpeg(std::string_view bytes, const std::filesystem::path& path);        ///< u8 (H, W, 3)
at::Tensor decode_png(std::string_view bytes, const std::filesystem::path& path);         ///< u8 (H, W, 3)
at::Tensor decode_png_labels(std::string_view bytes, const std::filesystem::path& path);  ///< u8 (H, W)
std::string encode_jpeg(const at::Tensor& image, int quality);  ///< u8 (H, W, 3), dense
std::string encode_png(const at::Tensor& image);                ///< the same, or (H, W)

/// Throws Error(kData): "cannot read image 'PATH': REASON".
[[noreturn]] void fail_to_read(const std::filesystem::path& path, const std::string& reason);
/// Refuses what no photograph has: a few bytes of header can claim gigabytes.
void check_pixels(const std::filesystem::path& path, uint64_t height, uint64_t width);

}  // namespace palimpsest::io::codecs
