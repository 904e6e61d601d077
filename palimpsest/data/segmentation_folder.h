#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/transforms.h"

#include <cstdint>
#include <memory>
#include <string>

namespace palimpsest::data {

/// Opens a segmentation data set: ROOT/SPLIT/NAME.jpg|png with labels ROOT/SPLITannot/NAME.png, sorted by
/// name. A label holds one 8-bit class id per pixel; ids must be < classes or equal to the ignore id.
/// ROOT/classes.txt, if it exists, names the classes, one per line without an empty line between. Throws Error(kData) at once for a missing
/// or empty folder, a missing label, or a label without image; with `skip_bad` an image without label throws
/// when it is read, unless all are, and faults() names labels without image. Throws Error(kData) when an
/// example is read, for an unreadable file, for sizes that differ, or for an id out of range. Throws
/// Error(kUsage) when an example is read whose crop does not fit while `pad` is false.
std::shared_ptr<Dataset> segmentation_folder(const std::string& root, const std::string& split,
                                             int64_t classes, const TransformOptions& transform,
                                             bool skip_bad = false);

}  // namespace palimpsest::data
