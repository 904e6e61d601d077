#include "palimpsest/memory/timeline.h"

#include "palimpsest/memory/counting_allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace palimpsest::memory {
namespace {

int64_t highest(const Timeline& timeline) {
  int64_t most = 0;
  for (const auto& sample : timeline.samples()) most = std::max(most, sample.current_bytes);
  return most;
}

TEST(Timeline, HasOneSamplePerEventAndOneAtEachEnd) {
  const int64_t before = memory_stats().current_bytes;
  Timeline timeline;
  {
    at::Tensor a = at::empty({100}, at::kByte);
    at::Tensor b = at::empty({7}, at::kByte);
  }
  timeline.stop();
  std::vector<int64_t> seen;
  for (const auto& sample : timeline.samples()) seen.push_back(sample.current_bytes - before);
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 100, 107, 100, 0, 0}));
  at::Tensor after = at::empty({1000}, at::kByte);
  EXPECT_EQ(timeline.samples().size(), 6u);
}

TEST(Timeline, TimeNeverGoesBackAndItsHighestSampleIsThePeakOverAllThreads) {
  reset_peak();
  Timeline timeline;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 300; ++i) at::Tensor tensor = at::empty({(t + 1) * 1000 + i}, at::kByte);
    });
  }
  for (auto& thread : threads) thread.join();
  timeline.stop();
  const auto& samples = timeline.samples();
  ASSERT_EQ(samples.size(), 2u + 2 * 6 * 300);
  EXPECT_GE(samples.front().seconds, 0);
  for (size_t i = 1; i < samples.size(); ++i) ASSERT_GE(samples[i].seconds, samples[i - 1].seconds);
  EXPECT_EQ(highest(timeline), memory_stats().peak_bytes);
  EXPECT_EQ(samples.back().current_bytes, samples.front().current_bytes);
}

TEST(Timeline, MarksLieInOrderWithinItsTime) {
  Timeline timeline;
  timeline.mark("forward");
  at::Tensor a = at::empty({10});
  timeline.mark("backward");
  timeline.stop();
  ASSERT_EQ(timeline.marks().size(), 2u);
  EXPECT_EQ(timeline.marks()[0].name, "forward");
  EXPECT_EQ(timeline.marks()[1].name, "backward");
  EXPECT_LE(timeline.marks()[0].seconds, timeline.marks()[1].seconds);
  EXPECT_LE(timeline.marks()[1].seconds, timeline.samples().back().seconds);
  EXPECT_THROW(timeline.mark("late"), std::logic_error);
}

TEST(Timeline, OnlyOneAtATime) {
  {
    Timeline first;
    EXPECT_THROW(Timeline second, std::logic_error);
    at::Tensor a = at::empty({10});
    first.stop();
    EXPECT_GE(first.samples().size(), 3u);  // the refused one did not end the first
  }
  Timeline next;
  next.stop();
  EXPECT_EQ(next.samples().size(), 2u);
}

}  // namespace
}  // namespace palimpsest::memory
