#include "palimpsest/memory/counting_allocator.h"

#include "palimpsest/base/random.h"
#include "palimpsest/memory/allocator/c10_allocator.h"
#include "tests/memory/units.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace palimpsest::memory {
namespace {

int64_t current() {
  return memory_stats().current_bytes;
}

TEST(CountingAllocator, IsInstalledAndIsTheOneThatTensorsUse) {
  EXPECT_TRUE(counting_allocator_installed());
  EXPECT_EQ(c10::GetAllocator(c10::DeviceType::CPU), &counting_allocator());
}

TEST(CountingAllocator, ATensorCountsItsBytesAsAskedFor) {
  const int64_t before = current();
  const int64_t calls = memory_stats().allocations;
  {
    at::Tensor small = at::empty({3}, at::kFloat);
    EXPECT_EQ(current() - before, 12);
    at::Tensor large = at::empty({1000, 1001}, at::kDouble);
    EXPECT_EQ(current() - before, 12 + 8'008'000);
    at::Tensor view = large.narrow(0, 0, 10);
    EXPECT_EQ(current() - before, 12 + 8'008'000);
    EXPECT_EQ(memory_stats().allocations - calls, 2);
  }
  EXPECT_EQ(current(), before);
}

TEST(CountingAllocator, PeakIsTheHighestSinceTheReset) {
  reset_peak();
  const int64_t before = current();
  EXPECT_EQ(memory_stats().peak_bytes, before);
  at::Tensor a = at::empty({5 * kMiB}, at::kByte);
  {
    at::Tensor b = at::empty({3 * kMiB}, at::kByte);
  }
  {
    at::Tensor c = at::empty({2 * kMiB}, at::kByte);
  }
  EXPECT_EQ(memory_stats().peak_bytes, before + 8 * kMiB);
  reset_peak();
  EXPECT_EQ(memory_stats().peak_bytes, before + 5 * kMiB);
}

TEST(CountingAllocator, DataIsAlignedToACacheLine) {
  for (int64_t bytes : {1, 63, 64, 65, 4096, 65536 - 64, 65536, 65537, 1 << 20, 5 << 20}) {
    at::Tensor t = at::empty({bytes}, at::kByte);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data_ptr()) % 64, 0u) << bytes;
  }
}

TEST(CountingAllocator, AnEmptyTensorCountsNothing) {
  const int64_t before = current();
  at::Tensor empty = at::empty({0, 3}, at::kFloat);
  EXPECT_EQ(current(), before);
  EXPECT_EQ(empty.numel(), 0);
  EXPECT_EQ(at::cat({empty, at::ones({1, 3})}).sum().item<double>(), 3.0);
}

TEST(CountingAllocator, RawAllocateGivesWhatRawDeallocateTakesBack) {
  const int64_t before = current();
  c10::Allocator* allocator = c10::GetAllocator(c10::DeviceType::CPU);
  void* data = allocator->raw_allocate(100'000);
  EXPECT_EQ(current() - before, 100'000);
  c10::DataPtr clone = allocator->clone(data, 100'000);
  EXPECT_EQ(current() - before, 200'000);
  clone.clear();
  allocator->raw_deallocate(data);
  EXPECT_EQ(current(), before);
}

#ifndef PALIMPSEST_ADDRESS_SANITIZER
TEST(CountingAllocator, AFreedTensorIsRetainedUntilReleased) {
  release_retained();
  EXPECT_EQ(memory_stats().retained_bytes, 0);
  void* data = nullptr;
  {
    at::Tensor t = at::empty({10 * kMiB}, at::kByte);
    data = t.data_ptr();
  }
  EXPECT_GE(memory_stats().retained_bytes, 10 * kMiB);
  EXPECT_EQ(at::empty({10 * kMiB}, at::kByte).data_ptr(), data);
  release_retained();
  EXPECT_EQ(memory_stats().retained_bytes, 0);
}
#endif

/// Sets a limit of `room` bytes above the live bytes, and removes it at the end of the scope.
struct Limit {
  explicit Limit(int64_t room) { set_memory_limit(current() + room); }
  ~Limit() { set_memory_limit(0); }
};

TEST(CountingAllocator, AboveTheLimitItThrowsOneLineWithBothNumbersAndGoesOn) {
  {
    at::Tensor retained = at::empty({30 * kMiB}, at::kByte);
  }
  const int64_t before = current();
  Limit limit(10 * kMiB);
  at::Tensor fits = at::empty({6 * kMiB}, at::kByte);
  reset_peak();
  try {
    at::empty({4 * kMiB + 1}, at::kByte);
    FAIL() << "the limit did not hold";
  } catch (const c10::OutOfMemoryError& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find(std::to_string(4 * kMiB + 1) + " bytes"), std::string::npos) << message;
    EXPECT_NE(message.find("limit of " + std::to_string(before + 10 * kMiB)), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  EXPECT_EQ(memory_stats().retained_bytes, 0);              // given back first
  EXPECT_EQ(current(), before + 6 * kMiB);                  // the refused request is not counted,
  EXPECT_EQ(memory_stats().peak_bytes, before + 6 * kMiB);  // not even in the peak
  at::Tensor exact = at::empty({4 * kMiB}, at::kByte);      // up to the limit, inclusive
  exact.fill_(1);
  EXPECT_EQ(exact[4 * kMiB - 1].item<int>(), 1);
}

TEST(CountingAllocator, TheLimitHoldsExactlyWhenThreadsRaceForTheLastBytes) {
  Limit limit(10 * kMiB);
  reset_peak();
  const int64_t before = current();
  std::atomic<int> granted{0}, refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        try {
          at::Tensor tensor = at::empty({3 * kMiB}, at::kByte);
          ++granted;
          std::this_thread::yield();
        } catch (const c10::OutOfMemoryError&) {
          ++refused;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(granted + refused, 8 * 300);
  EXPECT_GT(granted, 0);
  EXPECT_LE(memory_stats().peak_bytes, before + 9 * kMiB);  // three at a time, never a fourth
  EXPECT_EQ(current(), before);
}

TEST(CountingAllocator, ANegativeLimitIsRefused) {
  EXPECT_THROW(set_memory_limit(-1), std::invalid_argument);
}

TEST(CountingAllocator, ARequestBeyondAnyMachineThrowsAndCountsNothing) {
  const int64_t before = current();
  EXPECT_THROW(at::empty({int64_t{1} << 54}, at::kByte), c10::OutOfMemoryError);
  EXPECT_EQ(current(), before);
}

TEST(CountingAllocator, ManyThreadsAllocateAndFreeAndTheTotalsReturn) {
  const int64_t before = current();
  reset_peak();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t] {
      Random random = Random::stream(7, t);
      std::vector<at::Tensor> mine;
      for (int i = 0; i < 500; ++i) {
        mine.push_back(at::empty({1 + random.below(200'000)}, at::kByte));
        if (mine.size() > 5) mine.erase(mine.begin() + random.below(6));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(current(), before);
  EXPECT_GT(memory_stats().peak_bytes, before);
  EXPECT_LE(memory_stats().peak_bytes, before + 8 * 6 * 200'000);
}

TEST(CountingAllocator, ABlockMayBeFreedByAnotherThreadThanItsMaker) {
  const int64_t before = current();
  at::Tensor t = at::ones({kMiB}, at::kByte);
  std::thread([moved = std::move(t)]() mutable { moved.reset(); }).join();
  EXPECT_EQ(current(), before);
}

}  // namespace
}  // namespace palimpsest::memory
