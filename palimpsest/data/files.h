#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest::data {

/// The .jpg, .jpeg and .png files of a folder, in any case, sorted by name. Hidden files and all other files
/// are skipped. Throws Error(kData) when the folder is missing, cannot be listed, or holds no image; the
/// message ends with `layout`, the files that were expected.
std::vector<std::filesystem::path> list_images(const std::filesystem::path& folder,
                                               const std::string& layout);
/// The folders in a folder, sorted by name, hidden ones skipped. Errors as above.
std::vector<std::filesystem::path> list_folders(const std::filesystem::path& folder,
                                                const std::string& layout);

}  // namespace palimpsest::data
