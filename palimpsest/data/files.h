#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest::data {

/// Throws Error(kData) unless a class name out of `source` is UTF-8: checkpoints and logs store it as text.
void check_class_name(const std::string& name, const std::string& source);

/// Returns whether there is a file or folder at `path`. Throws Error(kData), with the path and the reason, if the system
/// does not tell: a folder that may not be searched, a loop of links, a name that is too long.
bool is_there(const std::filesystem::path& path);

/// Returns the .jpg, .jpeg and .png files of a folder (upper or lower case), sorted by name. Skips hidden
/// files and all other files. Throws Error(kData) if the folder is missing, cannot be listed, or holds no
/// image; the message ends with `layout`, the files that were expected.
std::vector<std::filesystem::path> list_images(const std::filesystem::path& folder,
                                               const std::string& layout);
/// Returns the folders in a folder, sorted by name. Skips hidden folders. Throws as list_images does.
std::vector<std::filesystem::path> list_folders(const std::filesystem::path& folder,
                                                const std::string& layout);

}  // namespace palimpsest::data
