#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/transforms.h"

#include <cstdint>
#include <string>

namespace palimpsest::io {
class ImageFile;
}

namespace palimpsest::data {

/// Makes the example of an image file and its label, u8 (H, W) of the same size, or undefined: choose_view,
/// then the colours, then the view of both. Only the pixels of the view are decoded. With `class_id` >= 0 the
/// view of a training shows a pixel of this class, uniform among its pixels, if the label has any.
///
/// Resampling::kInterpolate: the image is normalized f32 and the target i64. Otherwise both are u8, and padding
/// is the mean colour, rounded. The first labeled image of a process that its Exif data turn without changing its size
/// gets a warning. Throws as choose_view and io::ImageFile do.
Sample make_example(const io::ImageFile& image, const at::Tensor& label, const TransformOptions& options,
                    Random& random, const std::string& name, int64_t class_id = -1);
/// The same of a decoded image, u8 (H, W, 3) and contiguous.
Sample make_example(const at::Tensor& image, const at::Tensor& label, const TransformOptions& options,
                    Random& random, const std::string& name, int64_t class_id = -1);

/// Opens the image file of an example with orientation_of(options).
io::ImageFile open_image(const std::filesystem::path& path, const TransformOptions& options);

}  // namespace palimpsest::data
