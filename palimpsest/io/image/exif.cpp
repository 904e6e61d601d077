#include "palimpsest/io/image/exif.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace palimpsest::io::codecs {
namespace {

constexpr int kUpright = 1;
constexpr std::size_t kEntryBytes = 12;  // tag, type, count, value

/// The numbers in a TIFF header and what follows it. A number beyond the end is 0.
struct Tiff {
  std::string_view bytes;
  bool little_endian;

  uint32_t number(std::size_t at, std::size_t size) const {
    if (at > bytes.size() || size > bytes.size() - at) return 0;
    uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const auto byte = static_cast<unsigned char>(bytes[at + (little_endian ? size - 1 - i : i)]);
      value = value << 8 | byte;
    }
    return value;
  }
};

}  // namespace

int exif_orientation(std::string_view segment) {
  using namespace std::string_view_literals;
  constexpr auto kSignature = "Exif\0\0"sv;
  constexpr uint32_t kOrientation = 0x0112, kShort = 3;
  if (!segment.starts_with(kSignature)) return kUpright;
  segment.remove_prefix(kSignature.size());
  if (!segment.starts_with("II*\0"sv) && !segment.starts_with("MM\0*"sv)) return kUpright;
  const Tiff tiff{segment, segment[0] == 'I'};
  const std::size_t directory = tiff.number(4, 4);
  const std::size_t entries = tiff.number(directory, 2);  // at most 65535
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    if (tiff.number(entry, 2) != kOrientation) continue;
    if (tiff.number(entry + 2, 2) != kShort || tiff.number(entry + 4, 4) != 1) return kUpright;
    const auto value = static_cast<int>(tiff.number(entry + 8, 2));
    return value >= 1 && value <= 8 ? value : kUpright;
  }
  return kUpright;
}

MirroredAxes mirrored_axes(int orientation) {
  // From 5 on, the rows of the file are the columns of the picture; then 6 mirrors as 2, 7 as 3 and 8 as 4.
  const int as = orientation >= 6 ? orientation - 4 : orientation;
  return {.rows = as == 3 || as == 4, .columns = as == 2 || as == 3};
}

at::Tensor upright(const at::Tensor& image, int orientation) {
  at::Tensor turned = orientation >= 5 ? image.transpose(0, 1) : image;
  const MirroredAxes mirrored = mirrored_axes(orientation);
  if (mirrored.rows) turned = turned.flip(0);
  if (mirrored.columns) turned = turned.flip(1);
  return turned.contiguous();
}

ImagePart as_stored(const ImagePart& part, ImageSize stored, int orientation) {
  ImagePart found = part;
  MirroredAxes mirrored = mirrored_axes(orientation);
  if (orientation >= 5) {
    std::swap(found.top, found.left);
    std::swap(found.height, found.width);
    std::swap(mirrored.rows, mirrored.columns);
  }
  if (mirrored.rows) found.top = stored.height - found.top - found.height;
  if (mirrored.columns) found.left = stored.width - found.left - found.width;
  return found;
}

}  // namespace palimpsest::io::codecs
