#include "palimpsest/io/image.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/image/codecs.h"
#include "palimpsest/io/image/exif.h"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace palimpsest::io {
namespace {

bool is_jpeg(std::string_view bytes) {
  return bytes.starts_with("\xFF\xD8\xFF");
}
bool is_png(std::string_view bytes) {
  return bytes.starts_with("\x89PNG\r\n\x1A\n");
}

// Returns "neither JPEG nor PNG (its first bytes are 47 49 46 38)", so that a GIF differs from an HTML page.
std::string foreign_format(std::string_view bytes) {
  if (bytes.empty()) return "the file is empty";
  std::string hex;
  for (const unsigned char byte : bytes.substr(0, 4)) {
    char digits[4];
    std::snprintf(digits, sizeof digits, " %02x", byte);
    hex += digits;
  }
  return "it is neither JPEG nor PNG (its first bytes are" + hex + ")";
}

at::Tensor contiguous_picture(const at::Tensor& image, const char* what, bool grey_allowed) {
  const bool fits = image.defined() && image.scalar_type() == at::kByte && image.device().is_cpu() &&
                    image.numel() > 0 &&
                    ((image.dim() == 3 && image.size(2) == 3) || (grey_allowed && image.dim() == 2));
  if (!fits) {
    std::ostringstream message;
    message << what << " needs a u8 (H, W, 3)" << (grey_allowed ? " or (H, W)" : "")
            << " tensor on the CPU, got ";
    if (image.defined()) {
      message << image.scalar_type() << " " << image.sizes() << " on " << image.device();
    } else {
      message << "none";
    }
    throw std::invalid_argument(message.str());
  }
  return image.contiguous();
}

}  // namespace

namespace codecs {

void fail_to_read(const std::filesystem::path& path, const std::string& reason) {
  throw Error(ErrorKind::kData, "cannot read image '" + path.string() + "': " + reason);
}

void check_pixels(const std::filesystem::path& path, uint64_t height, uint64_t width) {
  if (height * width > kMaxPixels) {  // no overflow: both formats have 32-bit sizes
    fail_to_read(path, "its header says " + std::to_string(width) + "x" + std::to_string(height) +
                           " pixels, the limit is " + std::to_string(kMaxPixels) + " in all");
  }
}

}  // namespace codecs

ImageSize reduced_size(ImageSize size, int eighths) {
  return {(size.height * eighths + 7) / 8, (size.width * eighths + 7) / 8};
}

ImageFile::ImageFile(const std::filesystem::path& path, Orientation orientation)
    : ImageFile(read_file(path), path, orientation) {}

ImageFile::ImageFile(std::string bytes, std::filesystem::path name, Orientation orientation)
    : bytes_(std::move(bytes)),
      name_(std::move(name)),
      orientation_(orientation),
      is_jpeg_(is_jpeg(bytes_)),
      size_{} {
  if (!is_jpeg_ && !is_png(bytes_)) codecs::fail_to_read(name_, foreign_format(bytes_));
  if (!is_jpeg_) {
    size_ = codecs::size_of_png(bytes_, name_);
    return;
  }
  const codecs::JpegHeader header = codecs::header_of_jpeg(bytes_, name_, orientation_);
  size_ = header.size;
  const bool turns_sides = header.orientation >= 5 && size_.height != size_.width;
  turns_unseen_ = header.orientation > 1 && !turns_sides;
  mirrored_ = codecs::mirrored_axes(header.orientation);
}

at::Tensor ImageFile::decode() const {
  return is_jpeg_ ? codecs::decode_jpeg(bytes_, name_, orientation_, nullptr)
                  : codecs::decode_png(bytes_, name_);
}

at::Tensor ImageFile::decode(const ImagePart& part) const {
  const bool scales = part.eighths == 8 || (is_jpeg_ && part.eighths >= 1 && part.eighths < 8);
  const ImageSize whole = reduced_size(size_, part.eighths);
  if (!scales || part.height < 1 || part.width < 1 || part.top < 0 || part.left < 0 ||
      part.height > whole.height - part.top || part.width > whole.width - part.left) {
    std::ostringstream message;
    message << "ImageFile::decode needs a part of " << (is_jpeg_ ? "1/8 to 8/8" : "8/8") << " of '"
            << name_.string() << "', got " << part.width << "x" << part.height << " at (" << part.left << ", "
            << part.top << ") of " << part.eighths << "/8, which has " << whole.width << "x" << whole.height
            << " pixels";
    throw std::invalid_argument(message.str());
  }
  if (is_jpeg_) return codecs::decode_jpeg(bytes_, name_, orientation_, &part);
  return codecs::decode_png(bytes_, name_)
      .narrow(0, part.top, part.height)
      .narrow(1, part.left, part.width)
      .contiguous();
}

at::Tensor read_image(const std::filesystem::path& path, Orientation orientation) {
  return ImageFile(path, orientation).decode();
}

at::Tensor read_label(const std::filesystem::path& path) {
  return decode_label(read_file(path), path);
}

at::Tensor decode_label(std::string_view bytes, const std::filesystem::path& name) {
  if (is_png(bytes)) return codecs::decode_png_labels(bytes, name);
  codecs::fail_to_read(name, is_jpeg(bytes)
                                 ? "it is a JPEG, which does not keep class ids exactly; labels must be PNG"
                                 : foreign_format(bytes) + "; labels must be PNG");
}

std::string png_software(const std::filesystem::path& path) {
  try {
    const std::string bytes = read_file(path);
    return is_png(bytes) ? codecs::software_of_png(bytes, path) : "";
  } catch (const Error&) {
    return "";
  }
}

std::string encode_png(const at::Tensor& image) {
  return codecs::encode_png(contiguous_picture(image, "encode_png", /*grey_allowed=*/true));
}

std::string encode_png_labels(const at::Tensor& labels, const std::vector<std::array<uint8_t, 3>>& palette) {
  if (!labels.defined() || labels.dim() != 2)
    throw std::invalid_argument("encode_png_labels needs a u8 (H, W) tensor on the CPU");
  const at::Tensor ids = contiguous_picture(labels, "encode_png_labels", /*grey_allowed=*/true);
  const auto* values = ids.const_data_ptr<uint8_t>();
  const int most = *std::max_element(values, values + ids.numel());
  if (palette.size() > 256 || (!palette.empty() && most >= static_cast<int>(palette.size())))
    throw std::invalid_argument("encode_png_labels needs a palette of more than " + std::to_string(most) +
                                " and at most 256 colours, got " + std::to_string(palette.size()));
  return codecs::encode_png_labels(ids, palette);
}

void write_png(const std::filesystem::path& path, const at::Tensor& image) {
  write_file_atomically(path, encode_png(image));
}

void write_jpeg(const std::filesystem::path& path, const at::Tensor& image, int quality) {
  if (quality < 1 || quality > 100) {
    throw std::invalid_argument("write_jpeg needs a quality of 1 to 100, got " + std::to_string(quality));
  }
  write_file_atomically(
      path, codecs::encode_jpeg(contiguous_picture(image, "write_jpeg", /*grey_allowed=*/false), quality));
}

}  // namespace palimpsest::io
