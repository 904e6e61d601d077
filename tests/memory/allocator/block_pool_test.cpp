#include "palimpsest/memory/allocator/block_pool.h"

#include "palimpsest/base/random.h"
#include "tests/memory/units.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace palimpsest::memory {
namespace {

#ifndef PALIMPSEST_ADDRESS_SANITIZER  // there the pool retains nothing by design

TEST(BlockPool, AFreedLargeBlockServesTheNextRequestOfItsClass) {
  BlockPool pool;
  BlockPool::Header* first = pool.take(kMiB);
  pool.give(first);
  EXPECT_GE(pool.retained_bytes(), kMiB);
  BlockPool::Header* second = pool.take(kMiB + 1000);
  EXPECT_EQ(second, first);
  EXPECT_EQ(pool.retained_bytes(), 0);
  pool.give(second);
}

TEST(BlockPool, SmallBlocksAreNotRetained) {
  BlockPool pool;
  pool.give(pool.take(1000));
  EXPECT_EQ(pool.retained_bytes(), 0);
  EXPECT_EQ(pool.live_bytes(), 0);
}

TEST(BlockPool, RoundingWastesAtMostAnEighthOfALargeBlock) {
  BlockPool pool;
  for (int64_t bytes = BlockPool::kSmallBytes + 1; bytes < 40 * kMiB; bytes += bytes / 7 + 1) {
    for (int64_t near : {bytes - 65, bytes - 64, bytes - 63, bytes}) {
      BlockPool::Header* block = pool.take(near);
      if (block->block_bytes == 0) {  // small
        pool.give(block);
        continue;
      }
      ASSERT_GE(block->block_bytes, near + 64);
      ASSERT_LE(block->block_bytes, (near + 64) + (near + 64) / 8 + 1);
      pool.give(block);
    }
  }
}

TEST(BlockPool, ReleaseGivesAllBackAndForgetsTheHighest) {
  BlockPool pool;
  BlockPool::Header* kept = pool.take(3 * kMiB);
  for (BlockPool::Header* block : {pool.take(kMiB), pool.take(200 * kMiB)}) pool.give(block);
  EXPECT_GE(pool.retained_bytes(), 201 * kMiB);
  pool.release();
  EXPECT_EQ(pool.retained_bytes(), 0);
  EXPECT_GE(pool.live_bytes(), 3 * kMiB);
  EXPECT_EQ(pool.bound_bytes(), pool.live_bytes() + pool.live_bytes() / 4 + BlockPool::kSlackBytes);
  pool.give(kept);
}

TEST(BlockPool, TheLongestUnusedBlockLeavesFirst) {
  BlockPool pool;
  BlockPool::Header* old = pool.take(60 * kMiB);
  pool.give(old);
  BlockPool::Header* recent = pool.take(70 * kMiB);  // 130 MiB in all, below 1.25 * 72 + 64
  pool.give(recent);
  const int64_t both = pool.retained_bytes();
  BlockPool::Header* third = pool.take(50 * kMiB);  // 180 MiB: the 60 must go
  EXPECT_LT(pool.retained_bytes(), both);
  EXPECT_EQ(pool.take(70 * kMiB), recent);
  pool.give(third);
  pool.give(recent);
}

TEST(BlockPool, LiveAndRetainedNeverExceedTheBoundUnderRandomLoad) {
  BlockPool pool;
  Random random(3);
  std::vector<BlockPool::Header*> live;
  int64_t highest = 0, most_retained = 0;
  for (int event = 0; event < 4000; ++event) {
    // Grows to some 60 blocks and shrinks again, over and over, with other sizes each time.
    const bool grow = live.empty() || (event / 60 % 2 == 0 && live.size() < 60);
    if (grow) {
      live.push_back(pool.take(1 + random.below(8 * kMiB)));
    } else {
      std::swap(live[random.below(static_cast<int64_t>(live.size()))], live.back());
      pool.give(live.back());
      live.pop_back();
    }
    highest = std::max(highest, pool.live_bytes());
    most_retained = std::max(most_retained, pool.retained_bytes());
    ASSERT_EQ(pool.bound_bytes(), highest + highest / 4 + 64 * kMiB);
    ASSERT_LE(pool.live_bytes() + pool.retained_bytes(), pool.bound_bytes()) << "event " << event;
  }
  EXPECT_GT(most_retained, 64 * kMiB);  // else this load never came near the bound
  for (BlockPool::Header* block : live) pool.give(block);
  EXPECT_EQ(pool.live_bytes(), 0);
}

#endif

TEST(BlockPool, ARequestThatTheSystemCannotServeChangesNothing) {
  BlockPool pool;
  BlockPool::Header* block = pool.take(kMiB);
  const int64_t live = pool.live_bytes(), bound = pool.bound_bytes();
  EXPECT_EQ(pool.take(int64_t{1} << 50), nullptr);
  EXPECT_EQ(pool.live_bytes(), live);
  EXPECT_EQ(pool.bound_bytes(), bound);
  pool.give(block);
}

TEST(BlockPool, BlocksOfManyThreadsDoNotOverlap) {
  BlockPool pool;
  std::vector<std::thread> threads;
  std::vector<int> damaged(8, 0);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      Random random = Random::stream(1, t);
      for (int round = 0; round < 200; ++round) {
        const int64_t bytes = 1 + random.below(256 * 1024);
        BlockPool::Header* block = pool.take(bytes);
        auto* data = reinterpret_cast<unsigned char*>(block + 1);
        std::memset(data, t + 1, static_cast<size_t>(bytes));
        std::this_thread::yield();
        for (int64_t i = 0; i < bytes; i += 97) damaged[t] += data[i] != t + 1;
        damaged[t] += data[bytes - 1] != t + 1;
        pool.give(block);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(damaged, std::vector<int>(8, 0));
  EXPECT_EQ(pool.live_bytes(), 0);
  EXPECT_LE(pool.retained_bytes(), pool.bound_bytes());
}

}  // namespace
}  // namespace palimpsest::memory
