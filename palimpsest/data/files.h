#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest::data {

/// The .jpg, .jpeg and .png files of a folder, any case, sorted by name; hidden files are skipped, and so is
/// whatever else lies there. Throws Error(kData) when the folder is missing, cannot be listed, or holds none:
/// `layout` tells the user what was expected where.
std::vector<std::filesystem::path> list_images(const std::filesystem::path& folder,
                                               const std::string& layout);
/// The folders in a folder, sorted by name, hidden ones skipped. Errors as above.
std::vector<std::filesystem::path> list_folders(const std::filesystem::path& folder,
                                                const std::string& layout);

}  // namespace palimpsest::data
