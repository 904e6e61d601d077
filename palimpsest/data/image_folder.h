#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/transforms.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::data {

/// Opens a classification data set: ROOT/SPLIT/CLASS/NAME.jpg|png. The classes are the sorted names of the
/// folders. Throws Error(kData) at once for a missing or empty folder, also for a class without images; for
/// an unreadable image when the example is read. Throws Error(kUsage) when an example is read whose crop does
/// not fit while `pad` is false.
std::shared_ptr<Dataset> image_folder(const std::string& root, const std::string& split,
                                      const TransformOptions& transform);

/// The images of each class, and their names.
struct ClassifiedFiles {
  std::vector<std::string> names;
  std::vector<std::vector<std::filesystem::path>> files;  ///< one list per class; a list may be empty
  std::vector<std::filesystem::path> skipped;             ///< files beside them that are not read
};

/// Returns the files of image_folder, with its errors.
ClassifiedFiles find_image_folder(const std::string& root, const std::string& split);
/// Opens images with their classes. Throws as image_folder does when an example is read.
std::shared_ptr<Dataset> classified_images(ClassifiedFiles files, const TransformOptions& transform);

/// Opens the images of a folder (sorted by name), or a single file, without targets and class names. Throws
/// as image_folder does.
std::shared_ptr<Dataset> image_files(const std::string& path, const TransformOptions& transform);

}  // namespace palimpsest::data
