#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
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
/// fill the rest with grey), corrupt, of another format, or of more than 160 million pixels.
at::Tensor read_image(const std::filesystem::path& path, Orientation orientation = Orientation::kUpright);

/// The height and width of a picture in pixels.
struct ImageSize {
  int64_t height, width;
  bool operator==(const ImageSize&) const = default;
};

/// A part of a picture. A JPEG file can be decoded at `eighths` / 8 of its size, 1 to 8, each side rounded up
/// (reduced_size); other files cannot, so their `eighths` is 8. The part is the window of height x width
/// pixels at (top, left) of the reduced, upright picture.
struct ImagePart {
  int eighths;
  int64_t top, left, height, width;
};

/// Returns the size of a picture at `eighths` / 8.
ImageSize reduced_size(ImageSize size, int eighths);

/// The axes of an upright picture that run against those of its file. A reduced picture has the pixel that
/// its size is rounded up for at the begin of such an axis; at the end of the others.
struct MirroredAxes {
  bool rows = false, columns = false;
};

/// An image file in memory whose header is read and whose pixels are not.
///
/// decode(part) has the pixels that the whole picture at these eighths has there. It takes the memory of the
/// part and a few rows; a progressive JPEG or a PNG takes the memory of the whole. Rows outside the part are
/// read, so that damage shows whatever the part, but their pixels are not computed.
class ImageFile {
 public:
  /// Throws Error(kData) as read_image does.
  explicit ImageFile(const std::filesystem::path& path, Orientation orientation = Orientation::kUpright);
  /// The same of the bytes of a file. `name` is for errors.
  ImageFile(std::string bytes, std::filesystem::path name, Orientation orientation = Orientation::kUpright);

  ImageSize size() const { return size_; }        ///< of the upright picture
  bool is_reducible() const { return is_jpeg_; }  ///< whether `eighths` below 8 are allowed
  /// Whether the Exif data turn or mirror the picture without changing its height and width.
  bool turns_unseen() const { return turns_unseen_; }
  MirroredAxes mirrored() const { return mirrored_; }
  at::Tensor decode() const;  ///< u8 (H, W, 3), as read_image
  /// Returns u8 (part.height, part.width, 3). Throws std::invalid_argument for a part that is empty or not
  /// inside the picture.
  at::Tensor decode(const ImagePart& part) const;

 private:
  std::string bytes_;
  std::filesystem::path name_;
  Orientation orientation_;
  bool is_jpeg_;
  ImageSize size_;
  bool turns_unseen_ = false;
  MirroredAxes mirrored_;
};

/// Reads a PNG label map as u8 (H, W) class ids: the grey values of 1 to 8 bits, or the indices of a palette
/// image. 16-bit grey is accepted if every value is below 256.
/// Throws Error(kData) as read_image does, and for pictures without ids: RGB, alpha, JPEG.
at::Tensor read_label(const std::filesystem::path& path);
/// Decodes the bytes of such a file; `name` is for errors.
at::Tensor decode_label(std::string_view bytes, const std::filesystem::path& name);

/// The text "Software" of each PNG file that this library writes: a word of PNG's own list.
inline constexpr std::string_view kPngSoftware = "palimpsest";
/// Returns this text of a PNG file, or "" if the file has none or is no PNG file that can be read. Decodes no
/// pixels.
std::string png_software(const std::filesystem::path& path);

/// Returns the PNG file of a u8 (H, W, 3) RGB or (H, W) grey image, of any strides, with kPngSoftware. The
/// same image gives the same bytes. Throws std::invalid_argument for any other tensor.
std::string encode_png(const at::Tensor& image);
/// Returns the PNG file of class ids, u8 (H, W): a palette image if there is a palette, RGB of each id, else
/// a grey one. Throws std::invalid_argument for any other tensor, and for an id beyond the palette.
std::string encode_png_labels(const at::Tensor& labels,
                              const std::vector<std::array<uint8_t, 3>>& palette = {});

/// Writes encode_png(image) as an AtomicFile (io/atomic_file.h), with its errors.
void write_png(const std::filesystem::path& path, const at::Tensor& image);

/// Writes a u8 (H, W, 3) RGB image as a baseline JPEG file without chroma subsampling (4:4:4); quality 1 to
/// 100. Writes atomically, as write_png does. Throws std::invalid_argument for any other tensor or quality.
void write_jpeg(const std::filesystem::path& path, const at::Tensor& image, int quality = 93);

}  // namespace palimpsest::io
