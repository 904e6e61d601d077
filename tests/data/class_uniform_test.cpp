#include "palimpsest/data/class_uniform.h"

#include "palimpsest/data/generated/streets.h"
#include "palimpsest/data/image_folder.h"
#include "palimpsest/data/loader.h"
#include "palimpsest/data/segmentation_folder.h"
#include "palimpsest/io/atomic_file.h"
#include "tests/support/dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

namespace palimpsest::data {
namespace {

using testing::expect_error;
using testing::TemporaryFolder;

/// Writes a data set of 3 classes: class 0 in all of 9 images, class 1 in two of them, class 2 in none.
void put_rare_class(const TemporaryFolder& folder, int64_t images = 9) {
  for (int64_t i = 0; i < images; ++i) {
    const std::string name = std::string(1, static_cast<char>('a' + i)) + ".png";
    testing::put_image(folder / "train" / name, 20, 24, static_cast<int>(10 * i));
    at::Tensor label = at::zeros({20, 24}, at::kByte);
    if (i % 5 == 2) label.narrow(0, 15, 2).narrow(1, 20, 3).fill_(1);
    if (i == 4) label[0].fill_(255);
    io::write_png(folder / "trainannot" / name, label);
  }
}

TransformOptions cropped() {
  TransformOptions options;
  options.crop = 8;
  options.resampling = Resampling::kBilinear;
  return options;
}

std::shared_ptr<Dataset> open(const TemporaryFolder& folder) {
  return segmentation_folder(folder.path().string(), "train", 3, cropped());
}

TEST(ClassPresence, CountsThePixelsOfEachClassForAnyNumberOfThreads) {
  const TemporaryFolder folder;
  put_rare_class(folder);
  const auto dataset = open(folder);
  for (const int64_t threads : {0, 1, 3, 20}) {
    int64_t told = -1;
    const auto presence = ClassPresence::build(*dataset, threads, [&](int64_t done) { told = done; });
    EXPECT_EQ(told, 9);
    EXPECT_EQ(presence.images(), 9);
    using Entry = ClassPresence::Entry;
    const std::vector<Entry> want{{0, 0, 480}, {1, 0, 480}, {2, 0, 474}, {2, 1, 6}, {3, 0, 480}, {4, 0, 456},
                                  {5, 0, 480}, {6, 0, 480}, {7, 0, 474}, {7, 1, 6}, {8, 0, 480}};
    EXPECT_EQ(presence.entries(), want);
  }
}

TEST(ClassPresence, TheFirstBadLabelIsTheErrorForAnyNumberOfThreads) {
  const TemporaryFolder folder;
  put_rare_class(folder);
  testing::put_label(folder / "trainannot/d.png", 20, 24, 7);
  testing::put_label(folder / "trainannot/g.png", 20, 24, 8);
  for (const int64_t threads : {1, 4})
    expect_error(ErrorKind::kData, {"d.png", "class id 7"},
                 [&] { ClassPresence::build(*open(folder), threads); });
}

TEST(ClassPresence, BadLabelsHaveNoClassIfTheyMayBeLeftOut) {
  const TemporaryFolder folder;
  put_rare_class(folder);
  testing::put_label(folder / "trainannot/d.png", 20, 24, 7);
  testing::put(folder / "trainannot/g.png", "no picture");
  for (const int64_t threads : {1, 4}) {
    std::vector<std::string> bad;
    const auto presence = ClassPresence::build(*open(folder), threads, nullptr, &bad);
    ASSERT_EQ(bad.size(), 2);
    EXPECT_NE(bad[0].find("d.png"), std::string::npos) << bad[0];
    EXPECT_NE(bad[1].find("g.png"), std::string::npos) << bad[1];
    EXPECT_EQ(presence.images(), 9);
    for (const auto& entry : presence.entries()) EXPECT_TRUE(entry.image != 3 && entry.image != 6);
  }
}

TEST(ClassPresence, IsReadBackAndRefusedForOtherDataAndDamage) {
  const TemporaryFolder folder, other;
  put_rare_class(folder);
  const auto dataset = open(folder);
  const auto presence = ClassPresence::build(*dataset, 2);
  const auto file = folder / "cache/presence.safetensors";
  presence.write(file, *dataset);
  EXPECT_EQ(ClassPresence::read(file, *dataset).entries(), presence.entries());

  put_rare_class(other, 8);
  expect_error(ErrorKind::kData, {file.string(), "other data"},
               [&] { ClassPresence::read(file, *open(other)); });
  expect_error(ErrorKind::kData, {"none"}, [&] { ClassPresence::read(folder / "none", *dataset); });
  const std::string bytes = io::read_file(file);
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
    std::ofstream(file, std::ios::binary) << bytes.substr(0, size);
    expect_error(ErrorKind::kData, {file.string()}, [&] { ClassPresence::read(file, *dataset); });
  }
  std::string wrong = bytes;  // the last number is the first class: out of range
  std::fill(wrong.end() - 8, wrong.end(), '\x7F');
  std::ofstream(file, std::ios::binary) << wrong;
  expect_error(ErrorKind::kData, {"out of range"}, [&] { ClassPresence::read(file, *dataset); });
}

TEST(ClassPresence, IsRefusedForAnotherIgnoreId) {
  const TemporaryFolder folder;
  put_rare_class(folder);
  testing::put_label(folder / "trainannot/e.png", 20, 24, 1);
  TransformOptions options = cropped();
  const auto with = [&](int64_t ignore_id) {
    options.ignore_id = ignore_id;
    return segmentation_folder(folder.path().string(), "train", 3, options);
  };
  const auto file = folder / "presence.safetensors";
  ClassPresence::build(*with(1), 2).write(file, *with(1));
  EXPECT_NO_THROW(ClassPresence::read(file, *with(1)));
  expect_error(ErrorKind::kData, {file.string(), "ignore id 1", "has 255"},
               [&] { ClassPresence::read(file, *with(255)); });
}

TEST(ClassUniform, DrawsEachClassEquallyOftenInEachEpoch) {
  const auto streets = generated::streets(40, 48, 64, 1, cropped());
  const auto presence = ClassPresence::build(*streets, 2);
  const auto sampler = class_uniform_sampler(presence);
  std::set<std::pair<int64_t, int64_t>> present;
  for (const auto& entry : presence.entries()) present.emplace(entry.image, entry.class_id);
  std::vector<Draw> before;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    const auto draws = sampler->epoch(3, epoch);
    EXPECT_EQ(draws, sampler->epoch(3, epoch));
    EXPECT_NE(draws, sampler->epoch(4, epoch));
    EXPECT_NE(draws, before);
    ASSERT_EQ(draws.size(), 40u);
    std::map<int64_t, int64_t> times;
    for (const Draw& draw : draws) {
      EXPECT_TRUE(present.contains({draw.index, draw.class_id}));
      ++times[draw.class_id];
    }
    const auto [least, most] =
        std::minmax_element(times.begin(), times.end(), [](auto& a, auto& b) { return a.second < b.second; });
    EXPECT_LE(most->second - least->second, 1);
    std::set<int64_t> occurring;
    for (const auto& entry : presence.entries()) occurring.insert(entry.class_id);
    EXPECT_EQ(times.size(), occurring.size());
    before = draws;
  }
}

TEST(ClassUniform, DrawsAnImageAgainOnlyAfterAllOthersOfItsClass) {
  const TemporaryFolder folder;
  put_rare_class(folder);
  const auto sampler = class_uniform_sampler(ClassPresence::build(*open(folder), 1));
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    std::map<int64_t, std::map<int64_t, int64_t>> times;
    for (const Draw& draw : sampler->epoch(1, epoch)) ++times[draw.class_id][draw.index];
    EXPECT_EQ(times.size(), 2u);
    for (const auto& [image, count] : times[1]) EXPECT_GE(count, 2) << image;  // 4 or 5 draws of two images
    for (const auto& [image, count] : times[0]) EXPECT_EQ(count, 1) << image;
  }
}

TEST(ClassUniform, CropsShowTheirClassAndBytesDoNotDependOnWorkersOrRanks) {
  const TemporaryFolder folder;
  put_rare_class(folder);
  const auto dataset = open(folder);
  LoaderOptions options;
  options.batch_size = 3;
  options.seed = 5;
  options.sampler = class_uniform_sampler(ClassPresence::build(*dataset, 1));
  const auto epoch_of = [&](int64_t workers, int64_t rank, int64_t ranks, int64_t first = 0) {
    LoaderOptions own = options;
    own.workers = workers;
    own.rank = rank;
    own.ranks = ranks;
    Loader loader(dataset, own);
    loader.start_epoch(2, first);
    std::vector<Batch> batches;
    while (auto batch = loader.next()) batches.push_back(std::move(*batch));
    return batches;
  };
  const auto same = [](const Batch& a, const Batch& b) {
    return a.images.equal(b.images) && a.targets.equal(b.targets) && a.names == b.names;
  };
  const auto want = epoch_of(0, 0, 1);
  ASSERT_EQ(want.size(), 3u);
  const auto draws = options.sampler->epoch(5, 2);
  for (std::size_t i = 0; i < 9; ++i)
    EXPECT_TRUE(want[i / 3].targets[static_cast<int64_t>(i % 3)].eq(draws[i].class_id).any().item<bool>())
        << i;
  for (const int64_t workers : {1, 3}) {
    const auto got = epoch_of(workers, 0, 1);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same(got[i], want[i])) << i;
  }
  const auto resumed = epoch_of(1, 0, 1, 2);
  ASSERT_EQ(resumed.size(), 1u);
  EXPECT_TRUE(same(resumed[0], want[2]));
  const auto first = epoch_of(1, 0, 2), second = epoch_of(0, 1, 2);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(at::cat({first[i].images, second[i].images}).equal(want[i].images)) << i;
}

TEST(ClassUniform, BalancesTheFoldersOfAClassification) {
  const TemporaryFolder folder;
  for (int i = 0; i < 7; ++i)
    testing::put_image(folder / "train/cat" / (std::to_string(i) + ".png"), 8, 8, 10);
  testing::put_image(folder / "train/dog/0.png", 8, 8, 200);
  const auto dataset = image_folder(folder.path().string(), "train", cropped());
  const auto draws = class_uniform_sampler(ClassPresence::build(*dataset, 2))->epoch(1, 0);
  EXPECT_EQ(std::count_if(draws.begin(), draws.end(), [](const Draw& d) { return d.class_id == 1; }), 4);
}

TEST(ClassUniform, NeedsClasses) {
  const TemporaryFolder folder;
  testing::put_image(folder / "train/a.png", 8, 8);
  testing::put_label(folder / "trainannot/a.png", 8, 8, 255);
  expect_error(ErrorKind::kUsage, {"class_uniform", "knows the classes"},
               [&] { ClassPresence::build(*image_files((folder / "train").string(), cropped()), 1); });
  expect_error(ErrorKind::kData, {"class_uniform", "all 1 labels"},
               [&] { class_uniform_sampler(ClassPresence::build(*open(folder), 1)); });
}

}  // namespace
}  // namespace palimpsest::data
