#include "palimpsest/data/class_set.h"

#include "palimpsest/data/class_colors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace palimpsest::data {
namespace {

struct Published {
  const char* name;
  std::size_t classes;
  int64_t official_ids;  // the size of train_ids
  int64_t voids;         // official ids that are void
  int64_t official_void;
};
constexpr Published kPublished[] = {
    {"camvid", 11, 12, 1, 11},           {"cityscapes", 19, 256, 16, 0}, {"cocostuff10k", 91, 183, 92, 0},
    {"cocostuff164k", 91, 256, 92, 255}, {"vistas", 65, 66, 1, 65},      {"voc", 21, 256, 1, 255},
    {"ade20k", 150, 151, 1, 0},
};

TEST(ClassSet, OtherNamesHaveNone) {
  EXPECT_EQ(class_set("cityscape"), nullptr);
  EXPECT_EQ(class_set(""), nullptr);
}

TEST(ClassSet, TheCountsAreThePublishedOnes) {
  for (const Published& p : kPublished) {
    const ClassSet* set = class_set(p.name);
    ASSERT_NE(set, nullptr) << p.name;
    EXPECT_EQ(set->names.size(), p.classes) << p.name;
    EXPECT_EQ(set->official_ids.size(), p.classes) << p.name;
    EXPECT_EQ(set->train_ids.size(), static_cast<std::size_t>(p.official_ids)) << p.name;
    EXPECT_EQ(std::count(set->train_ids.begin(), set->train_ids.end(), ClassSet::kVoid), p.voids) << p.name;
    EXPECT_EQ(set->official_void, p.official_void) << p.name;
    EXPECT_EQ(set->train_ids.at(p.official_void), ClassSet::kVoid) << p.name;
  }
}

TEST(ClassSet, NamesDifferAndOfficialIdsLeadBack) {
  for (const Published& p : kPublished) {
    const ClassSet* set = class_set(p.name);
    EXPECT_EQ(std::set<std::string>(set->names.begin(), set->names.end()).size(), p.classes) << p.name;
    for (std::size_t i = 0; i < p.classes; ++i)
      EXPECT_EQ(set->train_ids.at(set->official_ids[i]), static_cast<int64_t>(i)) << p.name << " " << i;
    EXPECT_EQ(std::count_if(set->train_ids.begin(), set->train_ids.end(), [](int64_t id) { return id >= 0; }),
              static_cast<std::ptrdiff_t>(p.classes))
        << p.name;
  }
}

/// The train id of a class, by its name.
int64_t id_of(const ClassSet& set, const std::string& name) {
  return std::find(set.names.begin(), set.names.end(), name) - set.names.begin();
}

TEST(ClassSet, KnownClassesHaveTheirPublishedIdsAndColours) {
  struct Known {
    const char *set, *name;
    int64_t train_id, official_id;
    std::array<uint8_t, 3> color;
  };
  const Known known[] = {
      {"camvid", "Bicyclist", 10, 10, {0, 128, 192}},   {"cityscapes", "road", 0, 7, {128, 64, 128}},
      {"cityscapes", "pole", 5, 17, {153, 153, 153}},   {"cityscapes", "train", 16, 31, {0, 80, 100}},
      {"cityscapes", "bicycle", 18, 33, {119, 11, 32}}, {"vistas", "Bird", 0, 0, {165, 42, 42}},
      {"vistas", "Road", 13, 13, {128, 64, 128}},       {"vistas", "Car", 55, 55, {0, 0, 142}},
      {"vistas", "Ego Vehicle", 64, 64, {120, 10, 10}}, {"voc", "background", 0, 0, {0, 0, 0}},
      {"voc", "aeroplane", 1, 1, {128, 0, 0}},          {"voc", "person", 15, 15, {192, 128, 128}},
      {"voc", "tvmonitor", 20, 20, {0, 64, 128}},       {"ade20k", "wall", 0, 1, {120, 120, 120}},
      {"ade20k", "person", 12, 13, {150, 5, 61}},       {"ade20k", "flag", 149, 150, {92, 0, 255}},
  };
  for (const Known& k : known) {
    const ClassSet& set = *class_set(k.set);
    EXPECT_EQ(id_of(set, k.name), k.train_id) << k.set << " " << k.name;
    EXPECT_EQ(set.official_ids.at(k.train_id), k.official_id) << k.set << " " << k.name;
    EXPECT_EQ(set.colors.at(k.train_id), k.color) << k.set << " " << k.name;
  }
}

TEST(ClassSet, CocoStuffTrainsStuffAndIgnoresThings) {
  for (const auto& [name, shift] :
       std::map<std::string, int64_t>{{"cocostuff10k", 0}, {"cocostuff164k", -1}}) {
    const ClassSet& set = *class_set(name);
    EXPECT_EQ(set.names.front(), "banner");
    EXPECT_EQ(set.names.back(), "wood");
    EXPECT_EQ(id_of(set, "sky-other"), 157 - 92);
    EXPECT_EQ(set.official_ids.front(), 92 + shift);
    EXPECT_EQ(set.official_ids.back(), 182 + shift);
    EXPECT_EQ(set.train_ids.at(1 + shift), ClassSet::kVoid) << "person";
    EXPECT_EQ(set.train_ids.at(91 + shift), ClassSet::kVoid) << "hair brush";
    EXPECT_TRUE(set.colors.empty());
  }
}

TEST(ClassSet, ANumberThatTheDataSetDoesNotUseIsNoClass) {
  EXPECT_EQ(class_set("cityscapes")->train_ids.at(34), ClassSet::kNoClass);
  EXPECT_EQ(class_set("voc")->train_ids.at(21), ClassSet::kNoClass);
  EXPECT_EQ(class_set("cocostuff164k")->train_ids.at(182), ClassSet::kNoClass);
}

// Published palettes with two classes of one colour: a picture cannot tell them apart.
TEST(ClassSet, ColoursDifferExceptThoseThatArePublishedTwice) {
  const std::map<std::string, std::size_t> shared{{"ade20k", 1}};
  for (const Published& p : kPublished) {
    const auto& colors = class_set(p.name)->colors;
    if (colors.empty()) continue;
    const auto repeats = shared.contains(p.name) ? shared.at(p.name) : 0;
    EXPECT_EQ(std::set(colors.begin(), colors.end()).size() + repeats, p.classes) << p.name;
  }
}

TEST(ClassColors, AreTheOfficialOnesOfAPublishedDataSet) {
  const at::Tensor colors = class_colors("cityscapes", 19);
  EXPECT_EQ(colors.sizes(), (at::IntArrayRef{19, 3}));
  EXPECT_TRUE(colors[1].equal(at::tensor({244, 35, 232}, at::kByte)));
  // Without colours of its own, of another number of classes, and of a folder of the user's.
  EXPECT_TRUE(class_colors("cocostuff10k", 91).equal(class_colors(91)));
  EXPECT_TRUE(class_colors("cityscapes", 20).equal(class_colors(20)));
  EXPECT_TRUE(class_colors("segmentation_folder", 3).equal(class_colors(3)));
}

}  // namespace
}  // namespace palimpsest::data
