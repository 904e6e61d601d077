#pragma once

#include "palimpsest/base/random.h"
#include "palimpsest/data/dataset.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace palimpsest::data {

/// What one example shows of an image: the image is scaled to (scaled_height, scaled_width), the window of
/// (height, width) pixels at (top, left) is taken, and mirrored left to right if `flip`. A window that
/// reaches out of the scaled image (negative top, say) shows padding there.
struct View {
  int64_t scaled_height, scaled_width;
  int64_t top, left;
  int64_t height, width;
  bool flip;
};

/// Throws Error(kUsage) for options out of range.
void check_transform(const TransformOptions& options);

/// Draws the view of an image of (height, width) pixels; four numbers of `random`, whatever the options.
/// Training: scale uniform in [scale_min, scale_max], then a square crop at a place uniform among those where
/// crop and image overlap as far as they can, then a flip. Else: the whole image, or the crop from its
/// middle. Throws Error(kUsage) naming `name` when a crop could need padding and options.pad is false; that
/// depends on the smallest scale, not on the one drawn, so that it shows at once and not after an hour.
View choose_view(int64_t height, int64_t width, const TransformOptions& options, Random& random,
                 const std::string& name);

/// u8 (H, W, 3) to normalized f32 (3, view.height, view.width): (value / 255 - mean) / std. Scaling is
/// bilinear between pixel centres (as at::upsample_bilinear2d without align_corners), not rounded in between.
/// Padding is the mean colour: 0.
at::Tensor view_image(const at::Tensor& image, const View& view, const TransformOptions& options);

/// u8 (H, W) to i64 (view.height, view.width): the id of the nearest pixel centre, so no id appears that was
/// not there. Padding is `ignore_id`.
at::Tensor view_label(const at::Tensor& label, const View& view, int64_t ignore_id);

}  // namespace palimpsest::data
