#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::data {

/// The classes of a published data set, in the order of the ids that a network is trained with, "train ids":
/// 0, 1, ... An official file of labels holds other numbers, "official ids".
struct ClassSet {
  std::vector<std::string> names;                ///< one per train id
  std::vector<std::array<uint8_t, 3>> colors;    ///< the official RGB colour of each train id; empty: none
  std::vector<int64_t> official_ids;             ///< the official id of each train id, for submissions
  /// The train id of each official id; -1 for void, which the loss ignores. Its size is the number of official
  /// ids, so a larger id in a file is an error.
  std::vector<int64_t> train_ids;
  int64_t official_void = 0;  ///< the official id that a submission holds where no class was predicted
};

/// Returns the classes of a published data set: "camvid", "cityscapes", "cocostuff10k", "cocostuff164k",
/// "vistas", "voc", "ade20k"; null for any other name.
const ClassSet* class_set(std::string_view name);

}  // namespace palimpsest::data
