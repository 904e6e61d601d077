#pragma once

#include "palimpsest/data/layouts.h"
#include "palimpsest/data/layouts/labeled_files.h"

#include <filesystem>
#include <string>

namespace palimpsest::data::layouts {

/// Returns the text of the files that a split needs: layout.expected for this split.
std::string expected_files(const Layout& layout, const Split& split);

/// Returns the folder, list or file below `root` that a split consists of. It need not be there.
std::filesystem::path split_place(const Layout& layout, const std::filesystem::path& root,
                                  const Split& split);

/// Finds the images and labels of a split of a layout with one label per pixel, and the meaning of the ids. A
/// split whose labels are not published has none unless they lie there all the same. Throws Error(kData) if a
/// folder or list is missing or empty, and Error(kUsage) for annotations that the split does not have.
LabeledFiles find_labeled_files(const Layout& layout, const std::filesystem::path& root, const Split& split,
                                const std::string& annotations);

}  // namespace palimpsest::data::layouts
