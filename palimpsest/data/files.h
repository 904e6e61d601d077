#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest::data {

/// Returns the .jpg, .jpeg and .png files of a folder (upper or lower case), sorted by name. Skips hidden
/// files, folders and all other files; adds them to `skipped`, if given, sorted by name. Throws Error(kData) if the folder is missing, cannot be listed, or holds no
/// image; the message ends with `layout`, the files that were expected.
std::vector<std::filesystem::path> list_images(const std::filesystem::path& folder, const std::string& layout,
                                               std::vector<std::filesystem::path>* skipped = nullptr);
/// Returns the folders in a folder, sorted by name. Skips hidden folders and files. Throws as list_images does.
std::vector<std::filesystem::path> list_folders(const std::filesystem::path& folder,
                                                const std::string& layout,
                                                std::vector<std::filesystem::path>* skipped = nullptr);

/// Returns "skipped 4 files or folders that ...: a.bmp, b.webp, c, ...", or "" for none.
std::string skipped_text(const std::vector<std::filesystem::path>& skipped);

}  // namespace palimpsest::data
