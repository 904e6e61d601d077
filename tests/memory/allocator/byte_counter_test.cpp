#include "palimpsest/memory/allocator/byte_counter.h"

#include <gtest/gtest.h>

#include <barrier>
#include <thread>
#include <vector>

namespace palimpsest::memory {
namespace {

TEST(ByteCounter, ThePeakOfManyThreadsIsExact) {
  // In each round all threads hold one byte at the same time, so the peak must be exactly their number: a
  // counter that reads and writes its peak in two steps loses some of them.
  constexpr int kThreads = 8;
  ByteCounter live;
  int wrong = 0;
  auto check = [&]() noexcept { wrong += live.peak() != kThreads || live.current() != kThreads; };
  std::barrier held(kThreads, check);
  auto reset = [&]() noexcept { live.reset_peak(); };
  std::barrier dropped(kThreads, reset);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 500; ++round) {
        live.add(1);
        held.arrive_and_wait();
        live.remove(1);
        dropped.arrive_and_wait();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(live.current(), 0);
}

TEST(ByteCounter, AnObserverHearsEveryChangeInOrder) {
  struct : ByteCounter::Observer {
    void changed(int64_t current) override { heard.push_back(current); }
    std::vector<int64_t> heard;
  } observer;
  ByteCounter live;
  live.add(5);
  EXPECT_TRUE(live.observe(&observer));
  EXPECT_FALSE(live.observe(&observer));  // one at a time
  constexpr int kThreads = 4, kRounds = 1000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        live.add(3);
        live.remove(3);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(live.observe(nullptr));
  live.add(100);
  ASSERT_EQ(observer.heard.size(), 1u + 2 * kThreads * kRounds);
  EXPECT_EQ(observer.heard.front(), 5);
  EXPECT_EQ(observer.heard.back(), 5);
  for (size_t i = 1; i < observer.heard.size(); ++i)
    ASSERT_EQ(std::abs(observer.heard[i] - observer.heard[i - 1]), 3) << "event " << i;
}

TEST(ByteCounter, ARefusedAdditionChangesNeitherCountNorPeak) {
  ByteCounter live;
  live.set_limit(10);
  EXPECT_TRUE(live.add(10));
  EXPECT_FALSE(live.add(1));
  EXPECT_EQ(live.current(), 10);
  EXPECT_EQ(live.peak(), 10);
  live.set_limit(0);
  EXPECT_TRUE(live.add(1));
}

}  // namespace
}  // namespace palimpsest::memory
