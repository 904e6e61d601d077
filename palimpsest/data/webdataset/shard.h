#pragma once

#include "palimpsest/io/tar.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace palimpsest::data::shards {

/// A part of a shard.
struct Piece {
  uint64_t offset = 0;
  uint64_t size = 0;
};

/// One example of a shard.
struct Example {
  Piece image, label;
  uint32_t name_begin = 0, name_end = 0;  ///< of the image's name in Shard::names
};

/// The examples of a shard.
struct Shard {
  std::filesystem::path path;
  std::vector<Example> examples;
  int64_t images = 0;  ///< with or without label
  std::string names;
  std::vector<std::string> faults;  ///< of the shard, and of examples that are left out

  std::string name_of(const Example& example) const;  ///< "shards/train-000000.tar: n01440764/17.jpg"
};

/// Returns the text of the files of a split, for messages.
std::string expected_files(bool labels_pixels);
/// Returns the .tar files of a folder, sorted by name. Skips hidden files.
std::vector<std::filesystem::path> archives_in(const std::filesystem::path& folder, std::error_code& error);

/// Returns the class that a .cls holds. Throws Error(kData), naming the example, unless it is in [0,
/// classes).
int64_t class_of(std::string_view text, int64_t classes, const std::string& example);

/// Finds the examples of a shard by reading all headers. Throws Error(kData) for a shard that cannot be
/// opened.
Shard read_examples(const std::filesystem::path& path, bool labels_pixels);
/// Finds the examples of a shard: in SHARD.index if it fits the shard, otherwise by reading all headers; then
/// writes SHARD.index if it can. Throws Error(kData) for a shard that cannot be opened.
Shard find_examples(const std::filesystem::path& path, bool labels_pixels);

}  // namespace palimpsest::data::shards
