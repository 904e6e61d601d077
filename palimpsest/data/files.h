#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest::data {

/// Throws Error(kData) unless a class name out of `source` is UTF-8: checkpoints and logs store it as text.
void check_class_name(const std::string& name, const std::string& source);
/// Throws Error(kData) unless the class names out of the file `source` are UTF-8 and differ from each other.
void check_class_names(const std::vector<std::string>& names, const std::string& source);
/// Returns the lines of ROOT/classes.txt without blanks around them, or none if there is no such file. Throws
/// Error(kData) as check_class_names does, and for an empty line before a name.
std::vector<std::string> read_class_names(const std::filesystem::path& root);

/// Returns the text of a file without the mark that some editors put before UTF-8.
std::string without_byte_order_mark(std::string text);

/// Returns whether there is a file or folder at `path`. Throws Error(kData), with the path and the reason, if
/// the system does not tell: a folder that may not be searched, a loop of links, a name that is too long.
bool is_there(const std::filesystem::path& path);

/// Returns the .jpg, .jpeg and .png files of a folder (upper or lower case), sorted by name. Skips hidden
/// files, folders and all other files; adds them to `skipped`, if given, sorted by name. Throws Error(kData)
/// if the folder is missing, cannot be listed, or holds no image; the message ends with `layout`, the files
/// that were expected.
std::vector<std::filesystem::path> list_images(const std::filesystem::path& folder, const std::string& layout,
                                               std::vector<std::filesystem::path>* skipped = nullptr);
/// Returns the folders in a folder, sorted by name. Skips hidden folders and files. Throws as list_images
/// does.
std::vector<std::filesystem::path> list_folders(const std::filesystem::path& folder,
                                                const std::string& layout,
                                                std::vector<std::filesystem::path>* skipped = nullptr);

/// Returns "skipped 4 files or folders that ...: a.bmp, b.webp, c, ...", or "" for none.
std::string skipped_text(const std::vector<std::filesystem::path>& skipped);

}  // namespace palimpsest::data
