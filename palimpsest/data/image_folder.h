#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/transforms.h"

#include <memory>
#include <string>

namespace palimpsest::data {

/// A classification data set: ROOT/SPLIT/CLASS/NAME.jpg|png. The classes are the sorted names of the folders.
/// Throws Error(kData) at once for a missing or empty folder, also for a class without images; an unreadable
/// image throws it when the example is read. A crop that does not fit while `pad` is false is Error(kUsage).
std::shared_ptr<Dataset> image_folder(const std::string& root, const std::string& split,
                                      const TransformOptions& transform);

/// The images of a folder (sorted by name), or a single file; no targets, no class names. Errors as above.
std::shared_ptr<Dataset> image_files(const std::string& path, const TransformOptions& transform);

}  // namespace palimpsest::data
