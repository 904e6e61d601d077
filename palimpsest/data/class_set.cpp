#include "palimpsest/data/class_set.h"

#include "palimpsest/data/class_sets/tables.h"

#include <map>
#include <numeric>

namespace palimpsest::data {
namespace {

/// The colour of an id in the palette of Pascal VOC: the bits of the id are spread over the channels, from
/// the top down. Source: VOClabelcolormap of the development kit.
std::array<uint8_t, 3> voc_color(int64_t id) {
  std::array<uint8_t, 3> color{};
  for (int64_t bit = 0; bit < 3; ++bit)
    for (int64_t c = 0; c < 3; ++c) color[c] |= static_cast<uint8_t>((id >> (3 * bit + c) & 1) << (7 - bit));
  return color;
}

/// Gives the classes the official ids `first`, `first` + 1, ... of the `official_ids` smallest numbers.
void number_classes(ClassSet& set, int64_t first, int64_t official_ids, int64_t official_void) {
  set.official_ids.resize(set.names.size());
  std::iota(set.official_ids.begin(), set.official_ids.end(), first);
  set.train_ids.assign(official_ids, ClassSet::kNoClass);
  for (std::size_t i = 0; i < set.official_ids.size(); ++i)
    set.train_ids[set.official_ids[i]] = static_cast<int64_t>(i);
  set.train_ids[official_void] = ClassSet::kVoid;
  set.official_void = official_void;
}

template <std::size_t n>
ClassSet of_rows(const class_sets::ClassRow (&rows)[n]) {
  ClassSet set;
  for (const class_sets::ClassRow& row : rows) {
    set.names.emplace_back(row.name);
    set.colors.push_back(row.color);
  }
  return set;
}

ClassSet camvid() {
  ClassSet set = of_rows(class_sets::kCamVid);
  number_classes(set, 0, 12, 11);
  return set;
}

ClassSet cityscapes() {
  ClassSet set = of_rows(class_sets::kCityscapes);
  set.official_ids.assign(std::begin(class_sets::kCityscapesIds), std::end(class_sets::kCityscapesIds));
  set.train_ids.assign(256, ClassSet::kNoClass);
  for (int64_t id = 0; id <= 33; ++id) set.train_ids[id] = ClassSet::kVoid;
  for (std::size_t i = 0; i < set.official_ids.size(); ++i)
    set.train_ids[set.official_ids[i]] = static_cast<int64_t>(i);
  set.train_ids[255] = ClassSet::kVoid;
  return set;
}

/// `version_10k`: the files hold COCO's category ids; otherwise ids that are smaller by 1.
ClassSet coco_stuff(bool version_10k) {
  ClassSet set;
  set.names.assign(std::begin(class_sets::kCocoStuff), std::end(class_sets::kCocoStuff));
  const int64_t first = version_10k ? 92 : 91;
  number_classes(set, first, version_10k ? 183 : 256, version_10k ? 0 : 255);
  for (int64_t thing = first - 91; thing < first; ++thing) set.train_ids[thing] = ClassSet::kVoid;
  return set;
}

ClassSet vistas() {
  ClassSet set = of_rows(class_sets::kVistas);
  number_classes(set, 0, 66, 65);
  return set;
}

ClassSet voc() {
  ClassSet set;
  for (const char* name : class_sets::kVoc) {
    set.colors.push_back(voc_color(static_cast<int64_t>(set.names.size())));
    set.names.emplace_back(name);
  }
  number_classes(set, 0, 256, 255);
  return set;
}

ClassSet ade20k() {
  ClassSet set = of_rows(class_sets::kAde20k);
  number_classes(set, 1, 151, 0);
  return set;
}

}  // namespace

const ClassSet* class_set(std::string_view name) {
  static const std::map<std::string, ClassSet, std::less<>> sets{
      {"camvid", camvid()},
      {"cityscapes", cityscapes()},
      {"cocostuff10k", coco_stuff(true)},
      {"cocostuff164k", coco_stuff(false)},
      {"vistas", vistas()},
      {"voc", voc()},
      {"ade20k", ade20k()},
  };
  const auto found = sets.find(name);
  return found == sets.end() ? nullptr : &found->second;
}

}  // namespace palimpsest::data
