#include "palimpsest/data/webdataset.h"

#include "palimpsest/data/loader.h"
#include "palimpsest/io/image.h"
#include "tests/support/dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/tar.h"
#include "tests/support/temporary_folder.h"

#include <ATen/ATen.h>

#include <chrono>
#include <set>
#include <thread>

namespace palimpsest::data::webdataset_tests {
namespace {

using testing::bytes_of;
using testing::expect_error;
using testing::get;
using testing::plain;
using testing::put;
using testing::tar;
using testing::TemporaryFolder;
using Members = std::vector<std::pair<std::string, std::string>>;

std::string picture(int64_t height, int64_t width, int value) {
  return io::encode_png(at::full({height, width, 3}, value, at::kByte));
}
std::string label(int64_t height, int64_t width, int id) {
  return io::encode_png(at::full({height, width}, id, at::kByte));
}

/// Shards train-0.tar, train-1.tar, ... whose example i, counted over all, has a picture of i and the class i.
void put_shards(const TemporaryFolder& folder, const std::vector<int>& examples) {
  int i = 0;
  for (std::size_t shard = 0; shard < examples.size(); ++shard) {
    Members members;
    for (int k = 0; k < examples[shard]; ++k, ++i) {
      members.emplace_back(std::to_string(i) + ".png", picture(4, 4, i));
      members.emplace_back(std::to_string(i) + ".cls", std::to_string(i));
    }
    put(folder / ("train-" + std::to_string(shard) + ".tar"), tar(members));
  }
}

std::shared_ptr<Dataset> open(const TemporaryFolder& folder, const std::string& split,
                              WebDatasetOptions options = {}) {
  if (options.classes == 0) options.classes = 100;
  return webdataset(folder.path(), split, options, plain());
}

TEST(WebDataset, ExamplesComeInTheOrderOfTheShardsWithTheirClasses) {
  const TemporaryFolder folder;
  put_shards(folder, {2, 3});
  const auto dataset = open(folder, "train-{0..1}.tar");
  ASSERT_EQ(dataset->size(), 5);
  EXPECT_EQ(dataset->class_names().size(), 100);
  EXPECT_EQ(dataset->class_names()[7], "class 7");
  for (int64_t i = 0; i < 5; ++i) {
    const Sample sample = get(*dataset, i);
    EXPECT_EQ(sample.target.item<int64_t>(), i);
    EXPECT_EQ(sample.image.sizes(), (at::IntArrayRef{3, 4, 4}));
    EXPECT_EQ(sample.name, (folder / ("train-" + std::to_string(i / 2 - i / 4) + ".tar")).string() + ": " +
                               std::to_string(i) + ".png");
  }
}

TEST(WebDataset, AFolderGivesItsTarFilesInOrder) {
  const TemporaryFolder folder;
  put(folder / "val/b.tar", tar({{"x.jpg", picture(2, 2, 1)}, {"x.cls", "1"}}));
  put(folder / "val/a.tar", tar({{"y.png", picture(2, 2, 1)}, {"y.cls", "0\n"}}));
  put(folder / "val/readme.txt", "");
  put(folder / "classes.txt", "cat\ndog\n");
  const auto dataset = open(folder, "val", {.classes = 2});
  ASSERT_EQ(dataset->size(), 2);
  EXPECT_EQ(get(*dataset, 0).target.item<int64_t>(), 0);
  EXPECT_EQ(dataset->class_names(), (std::vector<std::string>{"cat", "dog"}));
  expect_error(ErrorKind::kData, {"classes.txt", "2 classes", "3 were"},
               [&] { open(folder, "val", {.classes = 3}); });
}

TEST(WebDataset, TheKeyEndsAtTheFirstDotOfTheName) {
  const TemporaryFolder folder;
  put(folder / "a.tar", tar({{"v1.0/x.PNG", picture(2, 2, 1)},
                             {"v1.0/x.json", "{}"},
                             {"v1.0/x.cls", "3"},
                             {"v1.0/y.cls", "4"},
                             {"v1.0/y.jpeg", picture(2, 2, 1)},
                             {"notes.txt", "no example"}}));
  const auto dataset = open(folder, "a.tar");
  ASSERT_EQ(dataset->size(), 2);
  EXPECT_EQ(get(*dataset, 1).target.item<int64_t>(), 4);
}

TEST(WebDataset, LabelsOfPixelsAreTheMemberSegPng) {
  const TemporaryFolder folder;
  put(folder / "a.tar", tar({{"1.jpg", picture(3, 5, 9)}, {"1.seg.png", label(3, 5, 2)}, {"1.cls", "0"}}));
  const Sample sample = get(*open(folder, "a.tar", {.classes = 3, .labels_pixels = true}), 0);
  EXPECT_TRUE(sample.target.equal(at::full({3, 5}, 2, at::kLong)));
  put(folder / "b.tar", tar({{"1.jpg", picture(3, 5, 9)}, {"1.seg.png", label(3, 5, 7)}}));
  expect_error(ErrorKind::kData, {"b.tar: 1.jpg", "class id 7", "0 to 2"},
               [&] { get(*open(folder, "b.tar", {.classes = 3, .labels_pixels = true}), 0); });
  put(folder / "c.tar", tar({{"1.jpg", picture(3, 5, 9)}, {"1.seg.png", label(5, 3, 0)}}));
  expect_error(ErrorKind::kData, {"c.tar: 1.jpg", "5x3", "3x5"},
               [&] { get(*open(folder, "c.tar", {.classes = 3, .labels_pixels = true}), 0); });
  expect_error(ErrorKind::kData, {"'1' of '", "no label (.cls", "segmentation model"},
               [&] { open(folder, "b.tar"); });
}

TEST(WebDataset, ClassesMustBeNumbersInRange) {
  const TemporaryFolder folder;
  for (const std::string text : {"100", "-1", "x", "", "1 2", "1.5", "99999999999999999999"}) {
    put(folder / "a.tar", tar({{"1.png", picture(2, 2, 1)}, {"1.cls", text}}));
    expect_error(ErrorKind::kData, {"a.tar: 1.png", "0 to 99", "'" + text + "'"},
                 [&] { get(*open(folder, "a.tar"), 0); });
  }
}

TEST(WebDataset, MissingShardsAndEmptySplitsAreErrors) {
  const TemporaryFolder folder;
  put_shards(folder, {1, 1});
  expect_error(ErrorKind::kData, {"train-2.tar", "does not exist", "one of 2 that are missing of 4"},
               [&] { open(folder, "train-{0..3}.tar"); });
  std::filesystem::create_directories(folder / "val");
  expect_error(ErrorKind::kData, {"val", "holds no .tar"}, [&] { open(folder, "val"); });
  put(folder / "val/a.tar", tar({{"notes.txt", "x"}}));
  expect_error(ErrorKind::kData, {"val", "hold no example", "KEY.cls"}, [&] { open(folder, "val"); });
}

TEST(WebDataset, FaultsOfShardsAreErrorsOrLeaveOutWhatTheyMust) {
  const TemporaryFolder folder;
  const std::string whole =
      tar({{"1.png", picture(2, 2, 1)}, {"1.cls", "1"}, {"2.png", picture(2, 2, 1)}, {"2.cls", "2"}});
  put(folder / "a.tar", whole.substr(0, 4 * 512 + 540));  // in the picture of 2
  put(folder / "b.tar",
      tar({{"3.png", picture(2, 2, 1)}, {"4.png", picture(2, 2, 1)}, {"4.cls", "4"}, {"5.cls", "5"}}));
  put(folder / "c.tar", "");
  expect_error(ErrorKind::kData, {"a.tar", "truncated", "after member '1.cls'"},
               [&] { open(folder, "a.tar"); });
  expect_error(ErrorKind::kData, {"'3' of", "b.tar", "no label"}, [&] { open(folder, "b.tar"); });
  const auto dataset = open(folder, "{a,b,c}.tar", {.skip_bad = true});
  ASSERT_EQ(dataset->size(), 2);
  EXPECT_EQ(get(*dataset, 0).target.item<int64_t>(), 1);
  EXPECT_EQ(get(*dataset, 1).target.item<int64_t>(), 4);
  const auto faults = dataset->faults();
  ASSERT_EQ(faults.size(), 3);
  EXPECT_NE(faults[0].find("its first example is whole"), std::string::npos) << faults[0];
  EXPECT_NE(faults[1].find("1 more in this shard"), std::string::npos) << faults[1];
  EXPECT_NE(faults[2].find("c.tar"), std::string::npos) << faults[2];
}

TEST(WebDataset, TheIndexIsReadInsteadOfTheHeadersWhileItFits) {
  const TemporaryFolder folder;
  put_shards(folder, {3});
  EXPECT_EQ(open(folder, "train-0.tar")->size(), 3);
  std::string index = bytes_of(folder / "train-0.tar.index");
  ASSERT_NE(index.find("1.cls"), std::string::npos);
  index.replace(index.find("2.cls"), 5, "9.cls");  // 2 has no label then, so it shows that the index was read
  put(folder / "train-0.tar.index", index);
  expect_error(ErrorKind::kData, {"'2' of"}, [&] { open(folder, "train-0.tar"); });
  for (const std::string& bad : {index.substr(0, index.size() - 5), std::string("x\n"), std::string(),
                                 index.substr(0, index.find('\n') + 1) + "a b c\nend\n"}) {
    put(folder / "train-0.tar.index", bad);
    EXPECT_EQ(open(folder, "train-0.tar")->size(), 3) << bad;
  }
  put_shards(folder, {2});
  EXPECT_EQ(open(folder, "train-0.tar")->size(), 2);
}

TEST(WebDataset, AShardThatIsReplacedWhileItsHeadersAreReadGetsNoIndexOfTheOldOne) {
  const TemporaryFolder folder;
  const auto many = [](int examples) {
    Members members;
    for (int i = 0; i < examples; ++i) {
      members.emplace_back(std::to_string(i) + ".png", "");
      members.emplace_back(std::to_string(i) + ".cls", "0");
    }
    return tar(members);
  };
  const std::string before = many(400), after = many(300);
  for (int round = 0; round < 100; ++round) {
    put(folder / "a.tar", before);
    put(folder / "next", after);
    std::filesystem::remove(folder / "a.tar.index");
    std::jthread reader([&] { open(folder, "a.tar"); });
    std::this_thread::sleep_for(std::chrono::microseconds(10 * round));
    std::filesystem::rename(folder / "next", folder / "a.tar");
    reader.join();
    ASSERT_EQ(open(folder, "a.tar")->size(), 300) << "round " << round;
  }
}

/// All batches of an epoch.
std::vector<Batch> epoch_of(const std::shared_ptr<Dataset>& dataset, LoaderOptions options,
                            int64_t first = 0) {
  options.batch_size = 4;
  options.seed = 7;
  Loader loader(dataset, options);
  loader.start_epoch(2, first);
  std::vector<Batch> batches;
  while (auto batch = loader.next()) batches.push_back(std::move(*batch));
  return batches;
}

TEST(WebDataset, AnEpochHasTheSameBytesForAnyWorkersRanksAndResumption) {
  const TemporaryFolder folder;
  put_shards(folder, {9, 8, 11, 12});
  const auto dataset = open(folder, "train-{0..3}.tar", {.shuffle_buffer = 5, .streams = 2});
  const auto whole = epoch_of(dataset, {.workers = 0});
  ASSERT_EQ(whole.size(), 10);
  std::set<std::string> names;
  for (const Batch& batch : whole) names.insert(batch.names.begin(), batch.names.end());
  EXPECT_EQ(names.size(), 40);
  for (const int64_t workers : {1, 3}) {
    const auto got = epoch_of(dataset, {.workers = workers});
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(got.at(i).images.equal(whole[i].images)) << i;
  }
  const auto resumed = epoch_of(dataset, {.workers = 2}, 6);
  ASSERT_EQ(resumed.size(), 4);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(resumed[i].names, whole[6 + i].names);
  const auto rank0 = epoch_of(dataset, {.workers = 1, .rank = 0, .ranks = 2}),
             rank1 = epoch_of(dataset, {.workers = 1, .rank = 1, .ranks = 2});
  std::set<std::string> shards0, shards1;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_TRUE(at::cat({rank0.at(i).images, rank1.at(i).images}).equal(whole[i].images)) << i;
    if (i >= 8) continue;  // at the end one stream fills in for the other
    for (const auto& name : rank0[i].names) shards0.insert(name.substr(0, name.find(':')));
    for (const auto& name : rank1[i].names) shards1.insert(name.substr(0, name.find(':')));
  }
  for (const auto& shard : shards0) EXPECT_FALSE(shards1.contains(shard)) << shard;
}

TEST(WebDataset, OptionsOutOfRangeAreErrors) {
  const TemporaryFolder folder;
  put_shards(folder, {1});
  expect_error(ErrorKind::kUsage, {"number of classes", "-1"},
               [&] { open(folder, "train-0.tar", {.classes = -1}); });
  expect_error(ErrorKind::kUsage, {"shuffle buffer", "0"},
               [&] { open(folder, "train-0.tar", {.shuffle_buffer = 0}); });
  expect_error(ErrorKind::kUsage, {"streams", "0"}, [&] { open(folder, "train-0.tar", {.streams = 0}); });
}

}  // namespace
}  // namespace palimpsest::data::webdataset_tests
