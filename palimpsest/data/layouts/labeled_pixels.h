#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/layouts/labeled_files.h"
#include "palimpsest/data/transforms.h"
#include "palimpsest/io/image.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::data::layouts {

/// The files of segmentation_folder, without the meaning of their ids. Throws as add_folder does.
LabeledFiles find_segmentation_folder(const std::filesystem::path& root, const std::string& split);

/// Returns what read_class_names does, or "class 0", "class 1", ... if there is no such file. Throws Error(kData)
/// unless it has one line per class.
std::vector<std::string> class_names(const std::filesystem::path& root, int64_t classes);

/// Returns "640x480": width and height.
std::string size_text(io::ImageSize size);
/// Returns the end of a message about an image and a label of different sizes: "; if the image is a photo ..."
/// where the label may have been drawn on the pixels as they are stored, else "".
std::string orientation_hint(io::ImageSize image, io::ImageSize label, io::Orientation orientation);
/// Returns the number of pixels of each class in a label of train ids, u8. The ignore id is no class.
std::vector<int64_t> pixels_per_class(const at::Tensor& label, std::size_t classes, int64_t ignore_id);

/// Returns the data set of these files; `names` are those of the classes. Throws as check_faults does, and
/// when an example is read as segmentation_folder does. With `skip_bad` faults() names the labels without
/// image, and an example that has a fault throws Error(kData) when it is read.
///
/// Memory per example in work: the file's bytes, 1 byte per pixel of the label, and 3 bytes per pixel of the
/// image, or of the part that the view needs (data/example.h).
std::shared_ptr<Dataset> labeled_pixels(LabeledFiles files, std::vector<std::string> names,
                                        const TransformOptions& transform, bool skip_bad);

}  // namespace palimpsest::data::layouts
