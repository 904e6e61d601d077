#include "palimpsest/data/loader.h"

#include "palimpsest/base/error.h"
#include "palimpsest/data/generated/streets.h"
#include "tests/support/expect_error.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

namespace palimpsest::data {
namespace {

using testing::expect_error;

/// Example i is an image filled with i and a number of its random stream; the target is i.
class Numbers : public Dataset {
 public:
  explicit Numbers(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  const std::vector<std::string>& class_names() const override { return names_; }
  Sample get(int64_t index, Random& random) const override {
    ++calls;
    // Examples finish in another order than they begin.
    std::this_thread::sleep_for(std::chrono::microseconds(index * 7919 % 300));
    if (index == failing || (failing_from >= 0 && index >= failing_from)) {
      throw std::runtime_error("example " + std::to_string(index));
    }
    const int64_t width = index == wide ? 4 : 3;
    at::Tensor image = at::full({3, 2, width}, static_cast<double>(index), at::kFloat);
    image[1].fill_(random.uniform());
    at::Tensor target;
    if (targets) target = at::scalar_tensor(index, at::kLong);
    return {image, target, "number/" + std::to_string(index)};
  }

  int64_t failing = -1, failing_from = -1, wide = -1;
  bool targets = true;
  mutable std::atomic<int> calls{0};

 private:
  int64_t size_;
  std::vector<std::string> names_;
};

LoaderOptions options_with(int64_t batch_size, int64_t workers, int64_t prefetch = 2) {
  LoaderOptions options;
  options.batch_size = batch_size;
  options.workers = workers;
  options.prefetch = prefetch;
  options.seed = 42;
  return options;
}

std::vector<Batch> rest_of_epoch(Loader& loader) {
  std::vector<Batch> batches;
  while (auto batch = loader.next()) batches.push_back(std::move(*batch));
  return batches;
}

std::vector<Batch> epoch_of(Loader& loader, int64_t epoch, int64_t first = 0) {
  loader.start_epoch(epoch, first);
  return rest_of_epoch(loader);
}

void expect_same(const std::vector<Batch>& got, const std::vector<Batch>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(got[i].images.equal(want[i].images)) << i;
    EXPECT_TRUE(got[i].targets.equal(want[i].targets)) << i;
    EXPECT_EQ(got[i].names, want[i].names);
  }
}

std::vector<int64_t> order(const std::vector<Batch>& batches) {
  std::vector<int64_t> all;
  for (const Batch& batch : batches) {
    for (int64_t i = 0; i < batch.targets.size(0); ++i) all.push_back(batch.targets[i].item<int64_t>());
  }
  return all;
}

TEST(Loader, GivesTheSameBytesForAnyNumberOfWorkersAndPrefetchedBatches) {
  const auto dataset = std::make_shared<Numbers>(23);
  Loader reference(dataset, options_with(4, 0));
  const auto epoch0 = epoch_of(reference, 0), epoch1 = epoch_of(reference, 1);
  for (const int64_t workers : {1, 3}) {
    for (int64_t prefetch = 1; prefetch <= 4; ++prefetch) {
      SCOPED_TRACE(std::to_string(workers) + " workers, prefetch " + std::to_string(prefetch));
      Loader loader(dataset, options_with(4, workers, prefetch));
      expect_same(epoch_of(loader, 0), epoch0);
      expect_same(epoch_of(loader, 1), epoch1);
      expect_same(epoch_of(loader, 0), epoch0);
    }
  }
}

TEST(Loader, GivesTheSameBytesForTheGeneratedStreets) {
  TransformOptions transform;
  transform.crop = 32;
  transform.scale_min = 0.7;
  transform.scale_max = 2;
  const auto dataset = generated::streets(10, 48, 64, 1, transform);
  Loader reference(dataset, options_with(3, 0)), loader(dataset, options_with(3, 3, 3));
  expect_same(epoch_of(loader, 5), epoch_of(reference, 5));
}

TEST(Loader, ShufflesEachEpochAnewAndGivesEveryExampleOnce) {
  LoaderOptions options = options_with(4, 2);
  options.drop_last = false;
  Loader loader(std::make_shared<Numbers>(50), options);
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    const auto batches = epoch_of(loader, epoch);
    EXPECT_EQ(batches.size(), 13u);
    EXPECT_EQ(batches.back().images.size(0), 2);
    auto all = order(batches);
    orders.insert(all);
    std::sort(all.begin(), all.end());
    std::vector<int64_t> want(50);
    std::iota(want.begin(), want.end(), 0);
    EXPECT_EQ(all, want);
  }
  EXPECT_EQ(orders.size(), 5u);
  options.seed = 43;
  Loader other(std::make_shared<Numbers>(50), options);
  EXPECT_FALSE(orders.contains(order(epoch_of(other, 0))));
}

TEST(Loader, TheShuffleIsFisherYatesOfTheEpochsStream) {
  std::vector<int64_t> want(12);
  std::iota(want.begin(), want.end(), 0);
  Random random = Random::stream(42, 3, ~uint64_t{0});
  for (int64_t i = 11; i > 0; --i) std::swap(want[i], want[random.below(i + 1)]);
  Loader loader(std::make_shared<Numbers>(12), options_with(4, 1));
  const auto batches = epoch_of(loader, 3);
  EXPECT_EQ(order(batches), want);
  // And the examples draw from streams of their own.
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(batches[0].images[i][1][0][0].item<float>(),
              static_cast<float>(Random::stream(42, 3, static_cast<uint64_t>(want[i])).uniform()));
  }
}

TEST(Loader, ARunOfAnOlderProgramKeepsItsOrder) {
  std::vector<int64_t> want(12);
  std::iota(want.begin(), want.end(), 0);
  Random random = Random::stream(42, 3);  // that of example 0
  for (int64_t i = 11; i > 0; --i) std::swap(want[i], want[random.below(i + 1)]);
  LoaderOptions options = options_with(4, 1);
  options.shuffle_stream = ShuffleStream::kOfTheFirstExample;
  Loader loader(std::make_shared<Numbers>(12), options);
  EXPECT_EQ(order(epoch_of(loader, 3)), want);
}

TEST(Loader, WithoutShuffleTheOrderIsTheDataSets) {
  LoaderOptions options = options_with(4, 2);
  options.shuffle = false;
  Loader loader(std::make_shared<Numbers>(10), options);
  EXPECT_EQ(loader.batches(), 2);
  EXPECT_EQ(order(epoch_of(loader, 0)), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(Loader, ResumingAtABatchGivesTheRestOfTheEpoch) {
  for (const int64_t workers : {0, 2}) {
    Loader loader(std::make_shared<Numbers>(23), options_with(4, workers));
    const auto whole = epoch_of(loader, 2);
    ASSERT_EQ(whole.size(), 5u);
    for (std::size_t k = 0; k <= whole.size(); ++k) {
      Loader fresh(std::make_shared<Numbers>(23), options_with(4, workers));
      expect_same(epoch_of(fresh, 2, static_cast<int64_t>(k)),
                  {whole.begin() + static_cast<int64_t>(k), whole.end()});
    }
  }
}

TEST(Loader, ANewEpochDropsWhatWasPrefetched) {
  for (const int64_t workers : {0, 1, 3}) {
    Loader loader(std::make_shared<Numbers>(40), options_with(4, workers, 4));
    const auto want = epoch_of(loader, 1);
    for (int64_t taken = 0; taken < 4; ++taken) {
      loader.start_epoch(0);
      for (int64_t i = 0; i < taken; ++i) ASSERT_TRUE(loader.next());
      expect_same(epoch_of(loader, 1), want);
    }
  }
}

TEST(Loader, AfterTheEndAndBeforeTheBeginningThereIsNothing) {
  for (const int64_t workers : {0, 2}) {
    Loader loader(std::make_shared<Numbers>(8), options_with(4, workers));
    EXPECT_FALSE(loader.next());
    EXPECT_EQ(epoch_of(loader, 0).size(), 2u);
    EXPECT_FALSE(loader.next());
    EXPECT_FALSE(loader.next());
  }
}

TEST(Loader, AnErrorComesAtItsBatchAndTheOthersAreGiven) {
  for (const int64_t workers : {0, 1, 3}) {
    auto dataset = std::make_shared<Numbers>(20);
    dataset->failing = 9;
    LoaderOptions options = options_with(4, workers, 3);
    options.shuffle = false;
    Loader loader(dataset, options);
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      loader.start_epoch(epoch);
      for (int64_t batch = 0; batch < 5; ++batch) {
        if (batch == 2) {
          EXPECT_THROW(loader.next(), std::runtime_error);
        } else {
          const auto got = loader.next();
          ASSERT_TRUE(got);
          EXPECT_EQ(got->targets[0].item<int64_t>(), 4 * batch);
        }
      }
      EXPECT_FALSE(loader.next());
    }
  }
}

TEST(Loader, OfSeveralErrorsTheFirstInTheBatchIsGiven) {
  for (const int64_t workers : {0, 1, 4}) {
    auto dataset = std::make_shared<Numbers>(8);
    dataset->failing_from = 2;
    LoaderOptions options = options_with(8, workers);
    options.shuffle = false;
    Loader loader(dataset, options);
    for (int round = 0; round < 10; ++round) {
      loader.start_epoch(0);
      try {
        loader.next();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "example 2");
      }
    }
  }
}

TEST(Loader, ImagesOfDifferentSizeCannotBeOneBatch) {
  for (const int64_t workers : {0, 2}) {
    auto dataset = std::make_shared<Numbers>(8);
    dataset->wide = 6;
    LoaderOptions options = options_with(4, workers);
    options.shuffle = false;
    Loader loader(dataset, options);
    loader.start_epoch(0);
    EXPECT_TRUE(loader.next());
    expect_error(ErrorKind::kUsage, {"number/4", "3x2", "number/6", "4x2", "crop", "batch of 1"},
                 [&] { loader.next(); });
  }
}

TEST(Loader, ABatchMayBeSplitByTheSizeOfItsImages) {
  for (const int64_t workers : {0, 2}) {
    auto dataset = std::make_shared<Numbers>(10);
    dataset->wide = 5;
    LoaderOptions options = options_with(4, workers);
    options.shuffle = false;
    options.drop_last = false;
    options.split_by_size = true;
    Loader loader(dataset, options);
    EXPECT_EQ(loader.batches(), 3);
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      const auto batches = epoch_of(loader, epoch);
      std::vector<std::vector<int64_t>> got;
      for (const Batch& batch : batches) got.push_back(order({batch}));
      EXPECT_EQ(got, (std::vector<std::vector<int64_t>>{{0, 1, 2, 3}, {4, 6, 7}, {5}, {8, 9}}));
      EXPECT_EQ(batches[2].images.sizes(), (at::IntArrayRef{1, 3, 2, 4}));
      EXPECT_EQ(batches[1].names, (std::vector<std::string>{"number/4", "number/6", "number/7"}));
    }
    loader.start_epoch(0, 1);
    loader.next();
    expect_same(epoch_of(loader, 0, 2),
                {epoch_of(loader, 0).back()});  // the rest of a split batch is dropped
  }
}

TEST(Loader, TheLargestBatchHoldsTheWholeDataSet) {
  LoaderOptions options = options_with(std::numeric_limits<int64_t>::max(), 1);
  options.drop_last = false;
  Loader loader(std::make_shared<Numbers>(5), options);
  EXPECT_EQ(loader.batches(), 1);
  EXPECT_EQ(epoch_of(loader, 0).at(0).images.size(0), 5);
}

TEST(Loader, WithoutTargetsTheyAreUndefined) {
  auto dataset = std::make_shared<Numbers>(4);
  dataset->targets = false;
  Loader loader(dataset, options_with(2, 1));
  const auto batches = epoch_of(loader, 0);
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_FALSE(batches[0].targets.defined());
  EXPECT_EQ(batches[0].images.size(0), 2);
}

TEST(Loader, NoMoreIsMadeThanWasAskedFor) {
  auto dataset = std::make_shared<Numbers>(400);
  Loader loader(dataset, options_with(4, 3, 2));
  loader.start_epoch(0);
  ASSERT_TRUE(loader.next());
  // One batch was taken and two may be ahead; time enough to make all hundred if nothing held the workers
  // back.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (dataset->calls < 4 * 3 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(dataset->calls, 4 * 3);
}

TEST(Loader, CanBeDestroyedAtAnyPoint) {
  for (int round = 0; round < 30; ++round) {
    Loader loader(std::make_shared<Numbers>(40), options_with(4, 1 + round % 4, 1 + round % 3));
    if (round % 5 == 0) continue;  // never begun
    loader.start_epoch(round);
    for (int i = 0; i < round % 4; ++i) ASSERT_TRUE(loader.next());
  }
}

/// Notes how many threads libtorch's operators would use inside get().
class ThreadCounter : public Numbers {
 public:
  using Numbers::Numbers;
  Sample get(int64_t index, Random& random) const override {
    at::parallel_for(0, 1 << 20, 1,
                     [&](int64_t, int64_t) { most = std::max(most.load(), omp_get_num_threads()); });
    most = std::max(most.load(), omp_get_max_threads());
    return Numbers::get(index, random);
  }
  mutable std::atomic<int> most{0};
};

TEST(Loader, WorkersDoNotFanOutAndTheCallerKeepsItsThreads) {
  const int before = at::get_num_threads(), openmp_before = omp_get_max_threads();
  at::set_num_threads(4);
  auto dataset = std::make_shared<ThreadCounter>(8);
  {
    Loader loader(dataset, options_with(4, 2));
    EXPECT_EQ(epoch_of(loader, 0).size(), 2u);
  }
  EXPECT_EQ(dataset->most, 1);
  EXPECT_EQ(at::get_num_threads(), 4);
  EXPECT_EQ(omp_get_max_threads(), 4);
  at::set_num_threads(before);
  omp_set_num_threads(openmp_before);
}

LoaderOptions share_of(LoaderOptions options, int64_t rank, int64_t ranks) {
  options.rank = rank;
  options.ranks = ranks;
  return options;
}

TEST(Loader, ThePartsOfTheRanksAreTheBatchesInOrder) {
  const auto dataset = std::make_shared<Numbers>(24);
  Loader alone(dataset, options_with(7, 0));
  const auto whole = epoch_of(alone, 1);
  ASSERT_EQ(whole.size(), 3u);
  for (int64_t ranks = 1; ranks <= 5; ++ranks) {
    for (const int64_t workers : {0, 2}) {
      for (std::size_t first = 0; first < whole.size();
           ++first) {  // 1, 2: resumed in the middle of the epoch
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(workers) + " workers, from batch " +
                     std::to_string(first));
        std::vector<std::vector<Batch>> parts;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          Loader loader(dataset, share_of(options_with(7, workers), rank, ranks));
          EXPECT_EQ(loader.batches(), 3);
          parts.push_back(epoch_of(loader, 1, static_cast<int64_t>(first)));
          ASSERT_EQ(parts.back().size(), whole.size() - first);
        }
        for (std::size_t k = first; k < whole.size(); ++k) {
          Batch joined;
          std::vector<at::Tensor> images, targets;
          for (const auto& of_rank : parts) {
            const Batch& part = of_rank[k - first];
            const int64_t more = part.images.size(0) - 7 / ranks;
            EXPECT_TRUE(more == 0 || more == 1) << part.images.size(0);
            images.push_back(part.images);
            targets.push_back(part.targets);
            joined.names.insert(joined.names.end(), part.names.begin(), part.names.end());
          }
          joined.images = at::cat(images);
          joined.targets = at::cat(targets);
          expect_same({joined}, {whole[k]});
        }
      }
    }
  }
}

TEST(Loader, RanksThatShareWholeBatchesTakeThemInTurn) {
  const auto dataset = std::make_shared<Numbers>(11);
  LoaderOptions options = options_with(4, 0);
  options.drop_last = false;
  options.shuffle = false;
  Loader alone(dataset, options);
  const auto whole = epoch_of(alone, 0);
  ASSERT_EQ(whole.size(), 3u);
  options.share_whole_batches = true;
  for (const int64_t workers : {0, 2}) {
    options.workers = workers;
    for (int64_t ranks = 1; ranks <= 5; ++ranks) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(std::to_string(rank) + " of " + std::to_string(ranks));
        std::vector<Batch> want;
        for (std::size_t i = static_cast<std::size_t>(rank); i < whole.size();
             i += static_cast<std::size_t>(ranks))
          want.push_back(whole[i]);
        Loader loader(dataset, share_of(options, rank, ranks));
        EXPECT_EQ(loader.batches(), 3);
        expect_same(epoch_of(loader, 0), want);
        expect_same(epoch_of(loader, 0), want);
      }
    }
  }
}

TEST(Loader, ARankWithoutAnImageIsAUsageError) {
  const auto refused = [](std::initializer_list<std::string> parts, const LoaderOptions& options) {
    expect_error(ErrorKind::kUsage, parts, [&] { Loader(std::make_shared<Numbers>(10), options); });
  };
  refused({"a batch must have", "5 processes", "got 4", "fewer processes"},
          share_of(options_with(4, 0), 0, 5));
  LoaderOptions keep = share_of(options_with(4, 0), 0, 3);
  keep.drop_last = false;
  refused({"the last batch must have", "3 processes", "got 2", "leave out"}, keep);
  keep.share_whole_batches = true;
  EXPECT_NO_THROW(Loader(std::make_shared<Numbers>(10), keep));
  refused({"rank must be from 0 to 1", "got 2"}, share_of(options_with(4, 0), 2, 2));
  refused({"rank must be from 0 to 1", "got -1"}, share_of(options_with(4, 0), -1, 2));
  refused({"number of ranks must be at least 1", "got 0"}, share_of(options_with(4, 0), 0, 0));
}

TEST(Loader, ImpossibleOptionsAreUsageErrors) {
  const auto refused = [](std::initializer_list<std::string> parts, LoaderOptions options,
                          int64_t size = 10) {
    expect_error(ErrorKind::kUsage, parts,
                 [&] { Loader(std::make_shared<Numbers>(size), options).start_epoch(0); });
  };
  refused({"batch size", "0"}, options_with(0, 1));
  refused({"workers", "-1"}, options_with(4, -1));
  refused({"prefetched", "0"}, options_with(4, 1, 0));
  refused({"10 examples", "batch of 11", "smaller batch"}, options_with(11, 1));
  LoaderOptions keep = options_with(11, 1);
  keep.drop_last = false;
  refused({"0 examples"}, keep, 0);
  Loader small(std::make_shared<Numbers>(10), keep);
  EXPECT_EQ(epoch_of(small, 0).size(), 1u);
  EXPECT_THROW(Loader(nullptr, {}), std::invalid_argument);
  EXPECT_THROW(small.start_epoch(-1), std::invalid_argument);
  EXPECT_THROW(small.start_epoch(0, 2), std::invalid_argument);
}

}  // namespace
}  // namespace palimpsest::data
