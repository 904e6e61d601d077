#pragma once

#include "palimpsest/io/tar.h"

#include <cstdint>
#include <filesystem>
#include <string>
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
  std::string names;
  std::vector<std::string> faults;  ///< of the shard, and of examples that are left out

  std::string name_of(const Example& example) const;  ///< "shards/train-000000.tar: n01440764/17.jpg"
};

/// Finds the examples of a shard: in SHARD.index if it fits the shard, otherwise by reading all headers; then
/// writes SHARD.index if it can. Throws Error(kData) for a shard that cannot be opened.
Shard find_examples(const std::filesystem::path& path, bool labels_pixels);

}  // namespace palimpsest::data::shards
