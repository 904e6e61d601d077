#include "palimpsest/data/image_folder.h"

#include "tests/support/dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <filesystem>

namespace palimpsest::data::image_folder_tests {
namespace {

using testing::expect_error;
using testing::get;
using testing::plain;
using testing::put;
using testing::put_image;
using testing::TemporaryFolder;

TEST(ImageFolder, ClassesAreTheSortedFolderNames) {
  const TemporaryFolder folder;
  put_image(folder / "train/dog/1.png", 3, 5, 10);
  put_image(folder / "train/cat/2.png", 3, 5, 20);
  put_image(folder / "train/cat/1.png", 3, 5, 30);
  put_image(folder / "train/.cache/1.png", 3, 5, 0);
  put(folder / "train/readme.txt", "");
  const auto dataset = image_folder(folder.path(), "train", plain());
  EXPECT_EQ(dataset->class_names(), (std::vector<std::string>{"cat", "dog"}));
  ASSERT_EQ(dataset->size(), 3);
  const std::vector<std::pair<std::string, int64_t>> want{
      {"cat/1.png", 0}, {"cat/2.png", 0}, {"dog/1.png", 1}};
  for (int64_t i = 0; i < 3; ++i) {
    const Sample sample = get(*dataset, i);
    EXPECT_TRUE(sample.name.ends_with(want[i].first)) << sample.name;
    EXPECT_EQ(sample.target.dim(), 0);
    EXPECT_EQ(sample.target.item<int64_t>(), want[i].second);
    EXPECT_EQ(sample.image.sizes(), (at::IntArrayRef{3, 3, 5}));
  }
}

TEST(ImageFolder, AClassWhoseNameIsNotUtf8IsRefused) {
  const TemporaryFolder folder;
  put_image(folder / "train/cat/1.png", 3, 5);
  put_image(folder / "train/d\xFFg/1.png", 3, 5);
  expect_error(ErrorKind::kData, {"d\\xffg", "UTF-8"},
               [&] { image_folder(folder.path(), "train", plain()); });
}

TEST(ImageFolder, AFolderThatTheSystemRefusesIsAnErrorOfTheData) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("loop", folder / "loop");
  expect_error(ErrorKind::kData, {"loop", "symbolic links"}, [&] { image_files(folder / "loop", plain()); });
  expect_error(ErrorKind::kData, {"name too long"},
               [&] { image_folder(std::string(5000, 'a'), "train", plain()); });
}

TEST(ImageFolder, MissingAndEmptyFoldersAreErrors) {
  const TemporaryFolder folder;
  expect_error(ErrorKind::kData, {(folder / "train").string(), "does not exist", "ROOT/train/CLASS/NAME.jpg"},
               [&] { image_folder(folder.path(), "train", plain()); });
  std::filesystem::create_directories(folder / "train");
  expect_error(ErrorKind::kData, {"holds no folder"}, [&] { image_folder(folder.path(), "train", plain()); });
  put_image(folder / "train/cat/1.png", 3, 5);
  std::filesystem::create_directories(folder / "train/dog");
  expect_error(ErrorKind::kData, {"train/dog", "holds no .jpg"},
               [&] { image_folder(folder.path(), "train", plain()); });
}

TEST(ImageFiles, TakesAFolderOrOneFileAndHasNoTargets) {
  const TemporaryFolder folder;
  put_image(folder / "b.png", 3, 5);
  put_image(folder / "a.png", 4, 7);
  const auto two = image_files(folder.path(), plain()),
             one = image_files((folder / "b.png").string(), plain());
  ASSERT_EQ(two->size(), 2);
  ASSERT_EQ(one->size(), 1);
  EXPECT_EQ(get(*two, 0).name, (folder / "a.png").string());
  EXPECT_EQ(get(*two, 0).image.sizes(), (at::IntArrayRef{3, 4, 7}));
  EXPECT_FALSE(get(*one, 0).target.defined());
  expect_error(ErrorKind::kData, {"nowhere", "does not exist"}, [&] { image_files("nowhere", plain()); });
}

}  // namespace
}  // namespace palimpsest::data::image_folder_tests
