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
  /// Values of `train_ids` that are no classes.
  static constexpr int64_t kVoid = -1;     ///< pixels that the loss ignores
  static constexpr int64_t kNoClass = -2;  ///< a number that the data set does not use: an error in a file

  std::vector<std::string> names;              ///< one per train id
  std::vector<std::array<uint8_t, 3>> colors;  ///< the official RGB colour of each train id; empty: none
  std::vector<int64_t> official_ids;           ///< the official id of each train id, for submissions
  /// The train id of each official id: a class, kVoid or kNoClass. Its size is the number of official ids, at
  /// most 256; a larger id in a file is an error as kNoClass is.
  std::vector<int64_t> train_ids;
  int64_t official_void = 0;  ///< the official id that a submission holds where no class was predicted
};

/// Returns the classes of a published data set; null for any other name.
///
/// | name             | classes | official ids of the classes    | void                        |
/// |------------------|---------|--------------------------------|-----------------------------|
/// | "camvid"         | 11      | 0 to 10, SegNet's              | 11                          |
/// | "cityscapes"     | 19      | 7 to 33, of *_labelIds.png     | the others of 0 to 33; 255  |
/// | "cocostuff10k"   | 91      | 92 to 182, of the variable S   | 0, and the things 1 to 91   |
/// | "cocostuff164k"  | 91      | 91 to 181, of stuffthingmaps   | 255, and the things 0 to 90 |
/// | "vistas"         | 65      | 0 to 64, version 1.2           | 65                          |
/// | "voc"            | 21      | 0 to 20; 0 is background       | 255                         |
/// | "ade20k"         | 150     | 1 to 150, scene parsing        | 0                           |
///
/// Cityscapes: 255 is the byte of the id -1 (license plate).
/// COCO-Stuff: the stuff classes, which the in-place paper trains, in the order of labels.txt. A category id
/// of COCO's result files is that of cocostuff10k. COCO-Stuff has no official colours.
/// Names are the first of each line's synonyms (ADE20K's objectInfo150.txt), and the readable ones (Vistas'
/// config.json).
const ClassSet* class_set(std::string_view name);

}  // namespace palimpsest::data
