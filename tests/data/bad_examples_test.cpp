#include "palimpsest/base/error.h"
#include "palimpsest/data/loader.h"
#include "tests/support/expect_error.h"

#include <ATen/ATen.h>

#include <atomic>
#include <set>

namespace palimpsest::data::bad_examples_tests {
namespace {

/// Example i is an image of i and a number of its random stream; those in `bad` cannot be read.
class Damaged : public Dataset {
 public:
  Damaged(int64_t size, std::set<int64_t> bad) : size_(size), bad_(std::move(bad)) {}
  int64_t size() const override { return size_; }
  const std::vector<std::string>& class_names() const override { return names_; }
  Sample get(int64_t index, Random& random) const override {
    ++calls;
    if (index == wrong) throw Error(ErrorKind::kUsage, "the crop does not fit");
    if (bad_.contains(index))
      throw Error(ErrorKind::kData, "cannot read image '" + std::to_string(index) + "'");
    at::Tensor image = at::full({3, 2, 2}, static_cast<double>(index), at::kFloat);
    image[1].fill_(random.uniform());
    return {image, at::scalar_tensor(index, at::kLong), std::to_string(index)};
  }
  int64_t wrong = -1;
  mutable std::atomic<int> calls{0};

 private:
  int64_t size_;
  std::set<int64_t> bad_;
  std::vector<std::string> names_;
};

LoaderOptions options_with(BadExamples bad, int64_t workers) {
  LoaderOptions options;
  options.batch_size = 4;
  options.workers = workers;
  options.seed = 3;
  options.bad_examples = bad;
  return options;
}

struct Epoch {
  std::vector<Batch> batches;
  std::vector<BadExample> bad;
};

Epoch epoch_of(std::shared_ptr<Damaged> dataset, const LoaderOptions& options, int64_t first = 0) {
  Loader loader(std::move(dataset), options);
  loader.start_epoch(1, first);
  Epoch epoch;
  const auto take = [&] {
    for (BadExample& bad : loader.take_bad()) epoch.bad.push_back(std::move(bad));
  };
  while (auto batch = loader.next()) {
    epoch.batches.push_back(std::move(*batch));
    take();
  }
  take();
  return epoch;
}

std::vector<int64_t> indices(const std::vector<BadExample>& bad) {
  std::vector<int64_t> found;
  for (const BadExample& example : bad) found.push_back(example.index);
  return found;
}

TEST(BadExamples, ByDefaultTheErrorIsThrown) {
  for (const int64_t workers : {0, 2})
    testing::expect_error(ErrorKind::kData, {"'9'"}, [&] {
      epoch_of(std::make_shared<Damaged>(20, std::set<int64_t>{9}),
               options_with(BadExamples::kFail, workers));
    });
}

TEST(BadExamples, ReplacementsKeepTheSizeOfTheBatchesAndAreTheSameForAnyWorkersAndRanks) {
  const auto dataset = std::make_shared<Damaged>(40, std::set<int64_t>{0, 1, 2, 9, 17, 39});
  const Epoch whole = epoch_of(dataset, options_with(BadExamples::kReplace, 0));
  ASSERT_EQ(whole.batches.size(), 10);
  auto found = indices(whole.bad);
  EXPECT_EQ(std::set<int64_t>(found.begin(), found.end()), (std::set<int64_t>{0, 1, 2, 9, 17, 39}));
  EXPECT_EQ(found.size(), 6);
  EXPECT_EQ(whole.bad[0].reason, "cannot read image '" + std::to_string(found[0]) + "'");
  for (const Batch& batch : whole.batches) EXPECT_EQ(batch.images.size(0), 4);
  for (const int64_t workers : {1, 4}) {
    const Epoch got = epoch_of(dataset, options_with(BadExamples::kReplace, workers));
    EXPECT_EQ(indices(got.bad), found);
    for (std::size_t i = 0; i < whole.batches.size(); ++i)
      EXPECT_TRUE(got.batches.at(i).images.equal(whole.batches[i].images)) << i;
  }
  LoaderOptions rank = options_with(BadExamples::kReplace, 1);
  rank.ranks = 2;
  const Epoch first = epoch_of(dataset, rank);
  rank.rank = 1;
  const Epoch second = epoch_of(dataset, rank);
  EXPECT_EQ(first.bad.size() + second.bad.size(), 6);
  for (std::size_t i = 0; i < whole.batches.size(); ++i)
    EXPECT_TRUE(
        at::cat({first.batches.at(i).images, second.batches.at(i).images}).equal(whole.batches[i].images));
  const Epoch resumed = epoch_of(dataset, options_with(BadExamples::kReplace, 2), 7);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(resumed.batches.at(i).images.equal(whole.batches[7 + i].images)) << i;
}

TEST(BadExamples, AnEvaluationLeavesThemOutAndCountsThemAll) {
  // The batches 0 and 4 have no example left.
  const auto dataset = std::make_shared<Damaged>(20, std::set<int64_t>{0, 1, 2, 3, 10, 16, 17, 18, 19});
  for (const int64_t workers : {0, 1, 3}) {
    LoaderOptions options = options_with(BadExamples::kLeaveOut, workers);
    options.shuffle = false;
    const Epoch epoch = epoch_of(dataset, options);
    ASSERT_EQ(epoch.batches.size(), 3);
    EXPECT_EQ(epoch.batches[1].names, (std::vector<std::string>{"8", "9", "11"}));
    EXPECT_EQ(indices(epoch.bad), (std::vector<int64_t>{0, 1, 2, 3, 10, 16, 17, 18, 19}));
  }
}

TEST(BadExamples, DataOfWhichNothingCanBeReadIsAnError) {
  std::set<int64_t> all;
  for (int64_t i = 0; i < 40; ++i) all.insert(i);
  for (const int64_t workers : {0, 2}) {
    const auto dataset = std::make_shared<Damaged>(40, all);
    testing::expect_error(ErrorKind::kData, {"101 examples in a row", "cannot read image"},
                          [&] { epoch_of(dataset, options_with(BadExamples::kReplace, workers)); });
    if (workers == 0) {
      EXPECT_EQ(dataset->calls, 101);
    }
  }
}

TEST(BadExamples, OtherErrorsAreNotSkipped) {
  const auto dataset = std::make_shared<Damaged>(8, std::set<int64_t>{});
  dataset->wrong = 5;
  for (const BadExamples bad : {BadExamples::kReplace, BadExamples::kLeaveOut})
    testing::expect_error(ErrorKind::kUsage, {"crop"}, [&] { epoch_of(dataset, options_with(bad, 1)); });
}

}  // namespace
}  // namespace palimpsest::data::bad_examples_tests
