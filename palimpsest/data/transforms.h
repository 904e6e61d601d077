#pragma once

#include "palimpsest/base/random.h"
#include "palimpsest/data/colors.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

namespace palimpsest::io {
enum class Orientation;
}

namespace palimpsest::data {

/// How an image is scaled.
enum class Resampling {
  kInterpolate,  ///< bilinear between pixel centres, without rounding: the example is normalized f32
  kBilinear,     ///< as Pillow's Image.resize: the example is bytes (data/resize.h)
  kBicubic       ///< as Pillow's Image.resize: the example is bytes
};

/// How a data set makes an example from an image: see choose_view, view_image and view_label below. The data
/// set throws Error(kUsage) for values out of range when it is made.
struct TransformOptions {
  /// false: no randomness, only normalization and the crop from the middle.
  bool training = true;
  /// Side of the square crop, pixels; 0: the whole image.
  int64_t crop = 0;
  /// Training only: image and label are scaled by a factor drawn from [scale_min, scale_max].
  double scale_min = 1;
  double scale_max = 1;
  Resampling resampling = Resampling::kInterpolate;
  /// The shorter side of the scaled image, before a random scale, pixels; 0: that of the image.
  int64_t short_side = 0;
  /// Training only, in place of scale_min, scale_max and short_side: a rectangle is cut out and scaled to the
  /// crop. Its area is a share of the image's, uniform in [area_min, area_max]; the logarithm of its ratio of
  /// width to height is uniform, the ratio in [1 / aspect_max, aspect_max].
  bool area_crop = false;
  double area_min = 0.08, area_max = 1;
  double aspect_max = 4.0 / 3;
  ColorOptions colors;  ///< training only; not with kInterpolate
  /// Decodes a JPEG file at the smallest eighth of its size that has the pixels of the view. Not with
  /// kInterpolate.
  bool reduce_jpeg = false;
  /// Training only: probability of mirroring left to right.
  double flip_probability = 0.5;
  /// Pads an image that is smaller than the crop (mean colour, ignore id); false: such an image is an error.
  bool pad = true;
  int64_t ignore_id = 255;
  /// Turns a JPEG image as its Exif data say (io/image.h). Labels have no such data.
  bool exif_orientation = true;
  /// RGB in [0, 1]: the image is normalized to (value - mean) / std.
  std::array<double, 3> mean{0.485, 0.456, 0.406};
  std::array<double, 3> std{0.229, 0.224, 0.225};
};

/// The part of an image that one example shows. The image is scaled to (scaled_height, scaled_width); the
/// view is the window of (height, width) pixels at (top, left), mirrored left to right if `flip`. A window
/// that extends beyond the scaled image (with a negative top, for instance) shows padding there. If cut_height
/// is not 0, the image is the rectangle of (cut_height, cut_width) pixels at (cut_top, cut_left): nothing
/// outside of it has an influence.
struct View {
  int64_t scaled_height, scaled_width;
  int64_t top, left;
  int64_t height, width;
  bool flip;
  int64_t cut_top = 0, cut_left = 0, cut_height = 0, cut_width = 0;
};

/// A pixel of an image.
struct Pixel {
  int64_t row, column;
};

/// Returns where the middle of `room` pixels begins: half of them, rounded to even as torchvision's crops are.
/// For less than 0 the floor: never less padding before than after.
int64_t middle_of(int64_t room);

/// Throws Error(kUsage) for options out of range.
void check_transform(const TransformOptions& options);

/// Returns the smallest scale, rounded up to four places, that leaves a pixel of a side of `side` pixels.
double least_scale(int64_t side);

/// Draws the view of an image of (height, width) pixels. Takes four numbers of `random`, whatever the
/// options. Training: a scale uniform in [scale_min, scale_max], then a square crop, uniform among the places
/// where crop and image overlap as much as possible, then a flip. With `focus`, a pixel of the image, a
/// training crop is uniform among those places that show this pixel. Otherwise: the whole image, or the crop
/// from its middle. Throws Error(kUsage) naming `name` if a crop could need padding and options.pad is false,
/// and Error(kData) if the smallest scale leaves no pixel. The checks use the smallest scale, not the scale that
/// was drawn, so an error shows in the first step, not after an hour.
View choose_view(int64_t height, int64_t width, const TransformOptions& options, Random& random,
                 const std::string& name, const Pixel* focus = nullptr);

/// Returns what becomes of the Exif orientation of the data set's images (io/image.h).
io::Orientation orientation_of(const TransformOptions& options);
/// Reads the image file of an example as u8 (H, W, 3): io::read_image with orientation_of(options).
at::Tensor read_image(const std::filesystem::path& path, const TransformOptions& options);

/// Maps u8 (H, W, 3) to normalized f32 (3, view.height, view.width): (value / 255 - mean) / std. Scaling is
/// bilinear between pixel centres (as in at::upsample_bilinear2d without align_corners), without intermediate
/// rounding. Padding is the mean colour, which is 0 after normalization.
at::Tensor view_image(const at::Tensor& image, const View& view, const TransformOptions& options);

/// Maps u8 (H, W) to (view.height, view.width) of `type`, i64 or u8: each pixel has the id of the nearest
/// pixel centre, so that no new id appears. This is Pillow's NEAREST, except that the centre between two source
/// pixels takes the later one. Padding is `ignore_id`.
at::Tensor view_label(const at::Tensor& label, const View& view, int64_t ignore_id,
                      at::ScalarType type = at::kLong);

}  // namespace palimpsest::data
