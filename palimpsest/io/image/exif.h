#pragma once

#include "palimpsest/io/image.h"

#include <ATen/core/Tensor.h>

#include <string_view>

namespace palimpsest::io::codecs {

/// Returns the orientation in an APP1 segment of a JPEG file, 1 to 8. Returns 1 (upright) for a segment that
/// is no Exif data, has no orientation or is damaged: the pixels are whole all the same. Reads the first
/// directory.
/// Source: CIPA DC-008 (Exif 2.3), tag 0x0112.
int exif_orientation(std::string_view segment);

/// Returns the axes of the upright picture that run against those of a file of this orientation.
MirroredAxes mirrored_axes(int orientation);

/// Turns u8 (H, W, 3), or mirrors it, so that a picture of this orientation is upright: (W, H, 3) from 5 on.
at::Tensor upright(const at::Tensor& image, int orientation);

/// Returns where the pixels of `part`, a part of the upright picture, lie in the picture as it is stored,
/// which has `stored` pixels.
ImagePart as_stored(const ImagePart& part, ImageSize stored, int orientation);

}  // namespace palimpsest::io::codecs
