#include "palimpsest/data/label_encoding.h"

#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/image.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace palimpsest::data {
namespace {

using palimpsest::testing::expect_error;
using palimpsest::testing::TemporaryFolder;

/// Three classes whose official ids are not in their order.
ClassSet three_classes() {
  ClassSet set;
  set.names = {"road", "sky", "car"};
  set.colors = {{128, 64, 128}, {70, 130, 180}, {0, 0, 142}};
  set.official_ids = {7, 23, 3};
  set.train_ids.assign(24, ClassSet::kVoid);
  return set;
}

at::Tensor some_classes() {
  return at::tensor({0, 1, 2, 2, 1, 0, 0}, at::kByte).view({1, 7}).expand({5, 7});
}

TEST(LabelEncoding, AFileHoldsTheOfficialIdOfEachClass) {
  const TemporaryFolder folder;
  for (const bool palette : {false, true}) {
    const auto path = folder / "labels.png";
    write_labels(path, some_classes(), official_encoding(three_classes(), palette));
    const at::Tensor official = at::tensor({7, 23, 3, 3, 23, 7, 7}, at::kByte).view({1, 7}).expand({5, 7});
    EXPECT_TRUE(io::read_label(path).equal(official));
    if (!palette) continue;
    const at::Tensor colors = at::tensor({128, 64, 128, 70, 130, 180, 0, 0, 142}, at::kByte).view({3, 3});
    EXPECT_TRUE(io::read_image(path).equal(colors.index({some_classes().to(at::kLong)})));
  }
}

TEST(LabelEncoding, TrainIdsAreTheClassesThemselves) {
  const TemporaryFolder folder;
  write_labels(folder / "labels.png", some_classes(), {});
  EXPECT_TRUE(io::read_label(folder / "labels.png").equal(some_classes()));
}

TEST(LabelEncoding, PublishedDataSetsHaveTheirs) {
  for (const auto& [name, classes] : {std::pair<const char*, int64_t>{"cityscapes", 19}, {"voc", 21}}) {
    const LabelEncoding encoding = official_encoding(name, classes);
    const ClassSet& set = *class_set(name);
    EXPECT_EQ(encoding.values.size(), set.official_ids.size());
    EXPECT_EQ(encoding.palette.empty(), std::string(name) == "cityscapes");
    for (std::size_t i = 0; i < encoding.values.size(); ++i) {
      EXPECT_EQ(encoding.values[i], set.official_ids[i]);
      if (encoding.palette.empty()) continue;
      EXPECT_EQ(encoding.palette[encoding.values[i]], set.colors[i]);
    }
  }
  expect_error(ErrorKind::kUsage, {"no official ids", "'cityscape'"},
               [] { official_encoding("cityscape", 19); });
  expect_error(ErrorKind::kUsage, {"cityscapes has 19 classes", "the network has 3"},
               [] { official_encoding("cityscapes", 3); });
}

TEST(LabelEncoding, WhatDoesNotFitIntoAByteIsAnError) {
  ClassSet set = three_classes();
  set.official_ids[1] = 256;
  expect_error(ErrorKind::kUsage, {"official id", "256"}, [&] { official_encoding(set, false); });
  const LabelEncoding encoding = official_encoding(three_classes(), false);
  EXPECT_THROW(encode_labels(at::full({2, 2}, 3, at::kByte), encoding), std::invalid_argument);
  EXPECT_THROW(io::encode_png_labels(at::zeros({2, 2, 3}, at::kByte)), std::invalid_argument);
  EXPECT_THROW(io::encode_png_labels(at::full({2, 2}, 2, at::kByte), {{1, 2, 3}, {4, 5, 6}}),
               std::invalid_argument);
}

TEST(LabelEncoding, FilesAreNamedAfterTheImages) {
  EXPECT_EQ(label_file_name("val/frankfurt/frankfurt_000000_000294_leftImg8bit.png"),
            "frankfurt_000000_000294_leftImg8bit.png");
  EXPECT_EQ(label_file_name("images/a.b.jpg"), "a.b.png");
}

}  // namespace
}  // namespace palimpsest::data
