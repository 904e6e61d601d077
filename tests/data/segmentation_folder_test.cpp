#include "palimpsest/data/segmentation_folder.h"

#include "tests/support/dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tolerance.h"

#include <ATen/ATen.h>

#include <filesystem>

namespace palimpsest::data {
namespace {

using testing::bytes_of;
using testing::expect_error;
using testing::get;
using testing::plain;
using testing::put;
using testing::put_image;
using testing::put_label;
using testing::TemporaryFolder;

/// Three pairs; image and label of number i have the value i.
void put_segmentation(const TemporaryFolder& folder) {
  for (int i = 0; i < 3; ++i) {
    const std::string name = "scene" + std::to_string(i);
    put_image(folder / "train" / (name + ".png"), 4, 6, i);
    put_label(folder / "trainannot" / (name + ".png"), 4, 6, i);
  }
}

TEST(SegmentationFolder, GivesImageAndLabelOfTheSameName) {
  const TemporaryFolder folder;
  put_segmentation(folder);
  put(folder / "train/notes.txt", "not an image");
  put(folder / "train/.hidden.png", "not an image either");
  const auto dataset = segmentation_folder(folder.path(), "train", 3, plain());
  ASSERT_EQ(dataset->size(), 3);
  for (int64_t i = 0; i < 3; ++i) {
    const Sample sample = get(*dataset, i);
    EXPECT_EQ(sample.image.sizes(), (at::IntArrayRef{3, 4, 6}));
    EXPECT_EQ(sample.target.sizes(), (at::IntArrayRef{4, 6}));
    EXPECT_EQ(sample.target.scalar_type(), at::kLong);
    EXPECT_TRUE(sample.target.eq(i).all().item<bool>());
    EXPECT_NEAR(sample.image[0][0][0].item<double>(), (static_cast<double>(i) / 255 - 0.485) / 0.229,
                testing::kRoundingF32);
    EXPECT_EQ(sample.name, (folder / "train" / ("scene" + std::to_string(i) + ".png")).string());
  }
  EXPECT_EQ(dataset->class_names(), (std::vector<std::string>{"class 0", "class 1", "class 2"}));
}

TEST(SegmentationFolder, TakesJpegImagesAndAnyCaseOfTheirName) {
  const TemporaryFolder folder;
  io::write_jpeg(folder / "val/a.JPG", at::full({4, 6, 3}, 50, at::kByte));
  io::write_jpeg(folder / "val/b.c.jpeg", at::full({4, 6, 3}, 50, at::kByte));
  put_label(folder / "valannot/a.png", 4, 6, 0);
  put_label(folder / "valannot/b.c.png", 4, 6, 1);
  const auto dataset = segmentation_folder(folder.path(), "val", 2, plain());
  ASSERT_EQ(dataset->size(), 2);
  EXPECT_TRUE(get(*dataset, 1).target.eq(1).all().item<bool>());
}

TEST(SegmentationFolder, ReadsClassNamesFromAFile) {
  const TemporaryFolder folder;
  put_segmentation(folder);
  put(folder / "classes.txt", "sky\nroad\r\na tree\n");
  EXPECT_EQ(segmentation_folder(folder.path(), "train", 3, plain())->class_names(),
            (std::vector<std::string>{"sky", "road", "a tree"}));
  expect_error(ErrorKind::kData, {"classes.txt", "names 3 classes", "4 were asked for"},
               [&] { segmentation_folder(folder.path(), "train", 4, plain()); });
}

TEST(SegmentationFolder, MissingThingsAreErrorsAtOnce) {
  const TemporaryFolder folder;
  expect_error(ErrorKind::kData, {(folder / "train").string(), "does not exist", "ROOT/trainannot/NAME.png"},
               [&] { segmentation_folder(folder.path(), "train", 3, plain()); });
  put(folder / "file", "");
  expect_error(ErrorKind::kData, {"is not a folder"},
               [&] { segmentation_folder(folder.path(), "file", 3, plain()); });
  std::filesystem::create_directories(folder / "train");
  expect_error(ErrorKind::kData, {(folder / "train").string(), "holds no .jpg, .jpeg or .png file"},
               [&] { segmentation_folder(folder.path(), "train", 3, plain()); });
  put_segmentation(folder);
  std::filesystem::remove(folder / "trainannot/scene1.png");
  expect_error(ErrorKind::kData, {"train/scene1.png", "has no label", "trainannot/scene1.png"},
               [&] { segmentation_folder(folder.path(), "train", 3, plain()); });
  expect_error(ErrorKind::kUsage, {"at least 1 class", "0"},
               [&] { segmentation_folder(folder.path(), "train", 0, plain()); });
}

TEST(SegmentationFolder, WithSkipBadAnImageWithoutLabelIsABadExample) {
  const TemporaryFolder folder;
  put_segmentation(folder);
  const auto open = [&] {
    return segmentation_folder(folder.path(), "train", 3, plain(), /*skip_bad=*/true);
  };
  std::filesystem::remove(folder / "trainannot/scene1.png");
  put_label(folder / "trainannot/lost.png", 4, 6, 0);
  const auto dataset = open();
  ASSERT_EQ(dataset->size(), 3);
  EXPECT_TRUE(get(*dataset, 2).target.eq(2).all().item<bool>());
  expect_error(ErrorKind::kData, {"train/scene1.png", "has no label"}, [&] { get(*dataset, 1); });
  expect_error(ErrorKind::kData, {"train/scene1.png", "has no label"}, [&] { dataset->class_pixels(1); });
  const auto faults = dataset->faults();
  ASSERT_EQ(faults.size(), 1);
  EXPECT_NE(faults[0].find("trainannot/lost.png' has no image"), std::string::npos) << faults[0];

  put_image(folder / "train/scene2.jpg", 4, 6);  // which of two images has the label, nobody can tell
  expect_error(ErrorKind::kData, {"scene2.jpg", "share one label"}, open);
  std::filesystem::remove(folder / "train/scene2.jpg");
  std::filesystem::remove(folder / "trainannot/scene0.png");
  std::filesystem::remove(folder / "trainannot/scene2.png");
  expect_error(ErrorKind::kData,
               {"no image can be used", "train/scene0.png", "has no label", "3 faults more"}, open);
}

TEST(SegmentationFolder, AnImageThatIsGoneIsMissedByItsLabel) {
  const TemporaryFolder folder;
  put_segmentation(folder);
  std::filesystem::remove(folder / "train/scene1.png");
  const auto read = [&] { segmentation_folder(folder.path(), "train", 3, plain()); };
  expect_error(ErrorKind::kData, {"trainannot/scene1.png", "has no image"}, read);
  std::filesystem::create_symlink(folder / "nowhere.png", folder / "train/scene1.png");
  expect_error(ErrorKind::kData, {"trainannot/scene1.png", "a link to nowhere"}, read);
}

TEST(SegmentationFolder, TwoImagesCannotShareALabel) {
  const TemporaryFolder folder;
  put_segmentation(folder);
  put_image(folder / "train/scene1.jpg", 4, 6);
  expect_error(ErrorKind::kData, {"scene1.jpg", "scene1.png", "share one label"},
               [&] { segmentation_folder(folder.path(), "train", 3, plain()); });
}

TEST(SegmentationFolder, TwoImagesOfOneLabelAreAnErrorWhereverTheyLieInTheOrder) {
  const TemporaryFolder folder;
  for (const char* name : {"train/a.jpg", "train/a.k.jpg", "train/a.png"}) put_image(folder / name, 4, 6);
  for (const char* name : {"trainannot/a.png", "trainannot/a.k.png"}) put_label(folder / name, 4, 6, 0);
  expect_error(ErrorKind::kData, {"a.jpg", "a.png", "share one label"},
               [&] { segmentation_folder(folder.path(), "train", 3, plain()); });
}

TEST(SegmentationFolder, APathThatTheSystemRefusesIsAnErrorOfTheData) {
  const TemporaryFolder folder;
  put_segmentation(folder);
  std::filesystem::create_symlink("classes.txt", folder / "classes.txt");  // a loop
  expect_error(ErrorKind::kData, {"classes.txt", "symbolic links"},
               [&] { segmentation_folder(folder.path(), "train", 3, plain()); });
  expect_error(ErrorKind::kData, {"name too long"},
               [&] { segmentation_folder(std::string(5000, 'a'), "train", 3, plain()); });
}

TEST(SegmentationFolder, ClassNamesThatAreNotUtf8AreRefused) {
  const TemporaryFolder folder;
  put_segmentation(folder);
  put(folder / "classes.txt",
      "sky\nro\xFF"
      "ad\ncar\n");
  expect_error(ErrorKind::kData, {"classes.txt", "ro\\xffad", "UTF-8"},
               [&] { segmentation_folder(folder.path(), "train", 3, plain()); });
}

TEST(SegmentationFolder, ClassNamesHaveNoBlanksAroundThemAndDiffer) {
  const TemporaryFolder folder;
  put_segmentation(folder);
  put(folder / "classes.txt", "  sky \nroad\t\r\n  a tree\n\n");
  const std::vector<std::string> names{"sky", "road", "a tree"};
  EXPECT_EQ(segmentation_folder(folder.path(), "train", 3, plain())->class_names(), names);
  put(folder / "classes.txt", "sky\nroad\n sky\n");
  expect_error(ErrorKind::kData, {"classes.txt", "names the class 'sky' twice", "must differ"},
               [&] { segmentation_folder(folder.path(), "train", 3, plain()); });
}

TEST(SegmentationFolder, DifferentSizesAreAnErrorWithBoth) {
  const TemporaryFolder folder;
  put_segmentation(folder);
  put_label(folder / "trainannot/scene2.png", 5, 6, 0);
  const auto dataset = segmentation_folder(folder.path(), "train", 3, plain());
  EXPECT_NO_THROW(get(*dataset, 0));
  expect_error(ErrorKind::kData, {"train/scene2.png", "6x4", "trainannot/scene2.png", "6x5"},
               [&] { get(*dataset, 2); });
}

TEST(SegmentationFolder, AnIdOutOfRangeIsAnErrorWithItsPlace) {
  const TemporaryFolder folder;
  put_segmentation(folder);
  at::Tensor label = at::zeros({4, 6}, at::kByte);
  label[2][5] = 11;
  io::write_png(folder / "trainannot/scene0.png", label);
  expect_error(ErrorKind::kData,
               {"trainannot/scene0.png", "class id 11", "row 2, column 5", "0 to 2", "ignore id 255"},
               [&] { get(*segmentation_folder(folder.path(), "train", 3, plain()), 0); });
  const Sample sample = get(*segmentation_folder(folder.path(), "train", 3, plain(11)), 0);
  EXPECT_EQ(sample.target[2][5].item<int64_t>(), 11);
  EXPECT_EQ(sample.target.eq(0).sum().item<int64_t>(), 23);
}

TEST(SegmentationFolder, UnreadableFilesAreErrorsThatNameThem) {
  const TemporaryFolder folder;
  put_segmentation(folder);
  const auto dataset = segmentation_folder(folder.path(), "train", 3, plain());
  const std::string image = bytes_of(folder / "train/scene0.png");
  put(folder / "train/scene0.png", image.substr(0, image.size() / 2));
  expect_error(ErrorKind::kData, {"train/scene0.png"}, [&] { get(*dataset, 0); });
  put_image(folder / "trainannot/scene1.png", 4, 6);
  expect_error(ErrorKind::kData, {"trainannot/scene1.png", "RGB"}, [&] { get(*dataset, 1); });
  std::filesystem::remove(folder / "train/scene2.png");
  expect_error(ErrorKind::kData, {"train/scene2.png", "No such file"}, [&] { get(*dataset, 2); });
}

TEST(SegmentationFolder, ACropThatDoesNotFitNamesTheImage) {
  const TemporaryFolder folder;
  put_segmentation(folder);
  TransformOptions options = plain();
  options.crop = 5;
  options.pad = false;
  expect_error(ErrorKind::kUsage, {"5x5", "scene0.png", "6x4", "set pad"},
               [&] { get(*segmentation_folder(folder.path(), "train", 3, options), 0); });
}

TEST(CamVid, IsReadWhole) {
  const std::filesystem::path root = "../shared/data/camvid";
  if (!std::filesystem::exists(root)) GTEST_SKIP() << "no CamVid at " << root;
  TransformOptions options = plain(11);
  const auto dataset = segmentation_folder(root, "val", 11, options);
  EXPECT_EQ(dataset->size(), 101);
  std::vector<int64_t> seen(12);
  for (int64_t i = 0; i < dataset->size(); i += 10) {
    const Sample sample = get(*dataset, i);
    EXPECT_EQ(sample.image.sizes(), (at::IntArrayRef{3, 360, 480}));
    for (int64_t id = 0; id < 12; ++id) seen[id] += sample.target.eq(id).sum().item<int64_t>();
  }
  for (int64_t id = 0; id < 12; ++id) EXPECT_GT(seen[id], 0) << id;
}

TEST(CamVid, ItsVoidIdIsAnErrorUnlessDeclared) {
  const std::filesystem::path root = "../shared/data/camvid";
  if (!std::filesystem::exists(root)) GTEST_SKIP() << "no CamVid at " << root;
  const auto dataset = segmentation_folder(root, "train", 11, plain(255));
  expect_error(ErrorKind::kData, {"trainannot", "class id 11", "0 to 10", "ignore id"}, [&] {
    for (int64_t i = 0; i < dataset->size(); ++i) get(*dataset, i);
  });
}

}  // namespace
}  // namespace palimpsest::data
