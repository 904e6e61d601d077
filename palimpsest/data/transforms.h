#pragma once

#include "palimpsest/base/random.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

namespace palimpsest::data {

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
/// that extends beyond the scaled image (with a negative top, for instance) shows padding there.
struct View {
  int64_t scaled_height, scaled_width;
  int64_t top, left;
  int64_t height, width;
  bool flip;
};

/// Throws Error(kUsage) for options out of range.
void check_transform(const TransformOptions& options);

/// Draws the view of an image of (height, width) pixels. Takes four numbers of `random`, whatever the
/// options. Training: a scale uniform in [scale_min, scale_max], then a square crop, uniform among the places
/// where crop and image overlap as much as possible, then a flip. Otherwise: the whole image, or the crop
/// from its middle. Throws Error(kUsage) naming `name` if a crop could need padding and options.pad is false.
/// The check uses the smallest scale, not the scale that was drawn, so an error shows in the first step, not
/// after an hour.
View choose_view(int64_t height, int64_t width, const TransformOptions& options, Random& random,
                 const std::string& name);

/// Reads the image file of an example as u8 (H, W, 3): io::read_image with the orientation that `options`
/// want.
at::Tensor read_image(const std::filesystem::path& path, const TransformOptions& options);

/// Maps u8 (H, W, 3) to normalized f32 (3, view.height, view.width): (value / 255 - mean) / std. Scaling is
/// bilinear between pixel centres (as in at::upsample_bilinear2d without align_corners), without intermediate
/// rounding. Padding is the mean colour, which is 0 after normalization.
at::Tensor view_image(const at::Tensor& image, const View& view, const TransformOptions& options);

/// Maps u8 (H, W) to i64 (view.height, view.width): each pixel has the id of the nearest pixel centre, so
/// that no new id appears. Padding is `ignore_id`.
at::Tensor view_label(const at::Tensor& label, const View& view, int64_t ignore_id);

}  // namespace palimpsest::data
