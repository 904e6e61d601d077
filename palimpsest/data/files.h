#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest::data {

/// Returns the .jpg, .jpeg and .png files of a folder (upper or lower case), sorted by name. Skips hidden
/// files and all other files. Throws Error(kData) if the folder is missing, cannot be listed, or holds no
/// image; the message ends with `layout`, the files that were expected.
std::vector<std::filesystem::path> list_images(const std::filesystem::path& folder,
                                               const std::string& layout);
/// Returns the folders in a folder, sorted by name. Skips hidden folders. Throws as list_images does.
std::vector<std::filesystem::path> list_folders(const std::filesystem::path& folder,
                                                const std::string& layout);

}  // namespace palimpsest::data
