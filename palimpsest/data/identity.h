#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest::data {

/// Returns a text that differs for other files: "12 images (9f1c0a52d3e4b687)". The digest is FNV-1a over
/// name, folder and size in bytes of each file, in this order; it does not depend on where the data set lies.
/// Reads no contents. A file of the same name and size is taken for the same file.
///   files   the images, and their labels if they have any
///   images  the number in the text
std::string files_identity(const std::vector<std::vector<std::filesystem::path>>& files, std::size_t images);

}  // namespace palimpsest::data
