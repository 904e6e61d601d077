#include "palimpsest/data/webdataset/shuffle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace palimpsest::data::shards {
namespace {

/// The first examples of `shards` shards of `examples` each, and behind the last one.
std::vector<int64_t> equal_shards(int64_t shards, int64_t examples) {
  std::vector<int64_t> first;
  for (int64_t i = 0; i <= shards; ++i) first.push_back(i * examples);
  return first;
}

std::vector<int64_t> order(const std::vector<int64_t>& first, const ShuffleOptions& options,
                           uint64_t seed = 1) {
  Random random(seed);
  return shuffled_shards(first, options, random);
}

TEST(ShardShuffle, EveryExampleOccursOnceWhateverTheOptions) {
  for (const auto& first :
       {equal_shards(1, 1), equal_shards(7, 10), std::vector<int64_t>{0, 0, 3, 3, 20, 21}})
    for (const int64_t buffer : {1, 2, 16, 1000})
      for (const int64_t streams : {1, 2, 3, 8})
        for (const int64_t batch : {1, 4, 7}) {
          auto indices = order(first, {buffer, streams, batch});
          std::sort(indices.begin(), indices.end());
          std::vector<int64_t> all(first.back());
          std::iota(all.begin(), all.end(), 0);
          EXPECT_EQ(indices, all) << buffer << " " << streams << " " << batch;
        }
}

TEST(ShardShuffle, TheOrderIsAFunctionOfTheStream) {
  const auto first = equal_shards(5, 40);
  EXPECT_EQ(order(first, {16, 2, 4}, 3), order(first, {16, 2, 4}, 3));
  EXPECT_NE(order(first, {16, 2, 4}, 3), order(first, {16, 2, 4}, 4));
}

TEST(ShardShuffle, ABufferOfOneReadsEachShardFrontToBack) {
  const auto indices = order(equal_shards(6, 50), {1, 1, 1});
  std::set<int64_t> shards;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i % 50 == 0) {
      EXPECT_TRUE(shards.insert(indices[i] / 50).second);
    }
    EXPECT_EQ(indices[i] % 50, static_cast<int64_t>(i % 50));
  }
}

// An example never comes earlier than the buffer allows, and the mean of how much later is the buffer's size.
TEST(ShardShuffle, TheBufferLimitsHowFarAheadOneReads) {
  const int64_t examples = 20000, buffer = 100;
  const auto indices = order({0, examples}, {buffer, 1, 1});
  double moved = 0;
  for (int64_t i = 0; i < examples; ++i) {
    EXPECT_LT(indices[i], i + buffer);
    moved += std::abs(static_cast<double>(indices[i] - i));
  }
  EXPECT_GT(moved / examples, buffer / 4.0);
  EXPECT_LT(moved / examples, buffer * 2.0);
}

TEST(ShardShuffle, ABufferThatHoldsAllIsAFullShuffle) {
  // Of 5 examples all 120 orders appear.
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 2000; ++seed) orders.insert(order({0, 5}, {5, 1, 1}, seed));
  EXPECT_EQ(orders.size(), 120);
}

TEST(ShardShuffle, EachStreamFillsItsPartOfEachBatchFromShardsOfItsOwn) {
  const int64_t batch = 8, streams = 4, examples = 50;
  const auto indices = order(equal_shards(8, examples), {20, streams, batch});
  std::vector<std::set<int64_t>> shards(streams);
  for (std::size_t i = 0; i < indices.size(); ++i)
    shards[i % batch / (batch / streams)].insert(indices[i] / examples);
  std::set<int64_t> all;
  for (const auto& of_stream : shards) {
    EXPECT_EQ(of_stream.size(), 2);
    all.insert(of_stream.begin(), of_stream.end());
  }
  EXPECT_EQ(all.size(), 8);
}

}  // namespace
}  // namespace palimpsest::data::shards
