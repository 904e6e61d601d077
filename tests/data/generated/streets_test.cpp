#include "palimpsest/data/generated/streets.h"

#include "palimpsest/data/generated/scene.h"
#include "tests/support/dataset.h"
#include "tests/support/expect_error.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace palimpsest::data::generated {
namespace {

using testing::expect_error;
using testing::get;
using testing::plain;

// FNV-1a: a number that changes with any byte.
uint64_t fingerprint(const at::Tensor& bytes) {
  uint64_t h = 0xCBF29CE484222325ull;
  const auto* data = bytes.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < bytes.numel(); ++i) h = (h ^ data[i]) * 0x100000001B3ull;
  return h;
}

TEST(Streets, AreAFunctionOfSeedAndIndex) {
  const auto a = draw_street(1, 2, 60, 80), again = draw_street(1, 2, 60, 80);
  EXPECT_TRUE(a.image.equal(again.image));
  EXPECT_TRUE(a.label.equal(again.label));
  EXPECT_FALSE(a.image.equal(draw_street(1, 3, 60, 80).image));
  EXPECT_FALSE(a.image.equal(draw_street(2, 2, 60, 80).image));
}

TEST(Streets, HaveEveryClassInSharesLikeThoseOfAStreet) {
  std::vector<double> share(256);
  constexpr int kScenes = 40;
  for (int i = 0; i < kScenes; ++i) {
    const at::Tensor counts =
        at::bincount(draw_street(3, i, 120, 160).label.flatten().to(at::kLong), {}, 256);
    for (int id = 0; id < 256; ++id) share[id] += counts[id].item<double>() / (kScenes * 120.0 * 160.0);
  }
  const std::vector<std::pair<double, double>> limits{
      {0.04, 0.2},    {0.15, 0.4},   {0.002, 0.03}, {0.2, 0.5},    {0.02, 0.15},  {0.05, 0.25},
      {0.0005, 0.02}, {0.005, 0.06}, {0.015, 0.12}, {0.002, 0.03}, {0.0005, 0.02}};
  for (std::size_t id = 0; id < limits.size(); ++id) {
    EXPECT_GE(share[id], limits[id].first) << street_class_names()[id];
    EXPECT_LE(share[id], limits[id].second) << street_class_names()[id];
  }
  EXPECT_GT(share[kVoid], 0.02);
  EXPECT_LT(share[kVoid], 0.15);
  for (int id = 11; id < 255; ++id) EXPECT_EQ(share[id], 0) << id;
}

TEST(Streets, VoidLiesOnBordersBetweenClassesOnly) {
  const at::Tensor label = draw_street(4, 0, 90, 120).label;
  const auto* ids = label.const_data_ptr<uint8_t>();
  int borders_left = 0;
  for (int64_t y = 0; y + 1 < 90; ++y) {
    for (int64_t x = 0; x + 1 < 120; ++x) {
      const uint8_t id = ids[y * 120 + x], right = ids[y * 120 + x + 1], down = ids[(y + 1) * 120 + x];
      if (id == kVoid) continue;
      borders_left += (right != kVoid && right != id) || (down != kVoid && down != id);
    }
  }
  EXPECT_EQ(borders_left, 0);
}

TEST(Streets, ImagesHaveContrastAndScenesDiffer) {
  double lowest = 255, highest = 0;
  for (int i = 0; i < 30; ++i) {
    const at::Tensor image = draw_street(5, i, 60, 80).image.to(at::kFloat);
    EXPECT_GT(image.std().item<double>(), 20) << i;
    lowest = std::min(lowest, image.mean().item<double>());
    highest = std::max(highest, image.mean().item<double>());
  }
  EXPECT_GT(highest - lowest, 30);  // dark days and bright ones
}

TEST(Streets, AnySizeCanBeDrawn) {
  for (const auto& [height, width] : {std::pair{16, 16}, {16, 200}, {200, 16}, {33, 47}, {360, 480}}) {
    for (int i = 0; i < 5; ++i) {
      const auto scene = draw_street(6, i, height, width);
      EXPECT_EQ(scene.image.sizes(), (at::IntArrayRef{height, width, 3}));
      EXPECT_EQ(scene.label.sizes(), (at::IntArrayRef{height, width}));
    }
  }
}

TEST(Streets, TheSameSceneOnEveryMachine) {
  const auto scene = draw_street(1, 0, 60, 80);
  EXPECT_EQ(fingerprint(scene.image), 14901583169924403842u);
  EXPECT_EQ(fingerprint(scene.label), 8193361232289608331u);
  const auto large = draw_street(7, 0, 360, 480);
  EXPECT_EQ(fingerprint(large.image), 9508111402788841594u);
  EXPECT_EQ(fingerprint(large.label), 3339461548301545285u);
}

TEST(GeneratedStreets, AreADataSet) {
  const auto dataset = streets(5, 48, 64, 1, plain());
  EXPECT_EQ(dataset->size(), 5);
  EXPECT_EQ(dataset->class_names(), street_class_names());
  const Sample sample = get(*dataset, 3);
  EXPECT_EQ(sample.name, "generated/3");
  EXPECT_EQ(sample.image.sizes(), (at::IntArrayRef{3, 48, 64}));
  EXPECT_TRUE(sample.target.equal(draw_street(1, 3, 48, 64).label.to(at::kLong)));
}

TEST(GeneratedStreets, VoidAndPaddingHaveTheIgnoreId) {
  for (const int64_t ignore_id : {int64_t{11}, int64_t{255}, int64_t{-1}, int64_t{1000}}) {
    TransformOptions options = plain(ignore_id);
    options.crop = 70;
    const at::Tensor target = get(*streets(1, 48, 64, 1, options), 0).target;
    EXPECT_TRUE(target.ge(0).logical_and(target.lt(11)).logical_or(target.eq(ignore_id)).all().item<bool>());
    EXPECT_EQ(target[0][0].item<int64_t>(), ignore_id);
    EXPECT_GT(target.eq(ignore_id).sum().item<int64_t>(), 70 * 70 - 48 * 64);
  }
}

TEST(GeneratedStreets, ImpossibleOptionsAreUsageErrors) {
  expect_error(ErrorKind::kUsage, {"number of images", "0"}, [] { streets(0, 48, 64, 1, plain()); });
  expect_error(ErrorKind::kUsage, {"16", "64x8"}, [] { streets(1, 8, 64, 1, plain()); });
  expect_error(ErrorKind::kUsage, {"ignore id", "got 10"}, [] { streets(1, 48, 64, 1, plain(10)); });
}

}  // namespace
}  // namespace palimpsest::data::generated
