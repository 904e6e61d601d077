#include "palimpsest/memory/meter.h"

#include "palimpsest/memory/counting_allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace palimpsest::memory {
namespace {

TEST(Meter, KeptBytesOfASmallGraphAreWhatAutogradSaves) {
  at::Tensor w = at::ones({1000}, at::kFloat).requires_grad_();  // 4000 bytes
  Meter meter;
  // exp saves its result (4000), the product of w with itself saves only w, the sum saves nothing and is the
  // loss.
  at::Tensor loss = (w * w).exp().sum();
  meter.forward_done();
  EXPECT_EQ(meter.kept_bytes(), 4000 + 4);
  loss.backward();
  EXPECT_EQ(meter.kept_bytes(), 4000 + 4);
}

TEST(Meter, KeptBytesLeaveOutWhatABackgroundThreadAllocatesWhereverItIsFreed) {
  at::Tensor before, within;
  const auto in_background = [](auto work) {
    std::thread([&] {
      mark_background_thread();
      work();
    }).join();
  };
  in_background([&] { before = at::empty({9000}, at::kByte); });
  const int64_t of_others = memory_stats().background_bytes - 9000;
  const at::Tensor w = at::ones({1000}, at::kFloat);
  Meter meter;
  in_background([&] {
    before.reset();  // freed by the background
    within = at::empty({7000}, at::kByte);
  });
  const at::Tensor y = w + 1;
  meter.forward_done();
  EXPECT_EQ(meter.kept_bytes(), 4000);
  EXPECT_EQ(memory_stats().background_bytes - of_others, 7000);
  EXPECT_EQ(memory_stats().current_bytes - meter.base_bytes(), 4000 - 9000 + 7000);
  within.reset();  // freed by this thread
  EXPECT_EQ(memory_stats().background_bytes, of_others);
  const at::Tensor z = w + 2;
  meter.forward_done();
  EXPECT_EQ(meter.kept_bytes(), 8000);
}

TEST(Meter, PeakCountsParametersAndWhatLivedForAMoment) {
  at::Tensor w = at::ones({1000}, at::kFloat);
  Meter meter;
  EXPECT_GE(meter.base_bytes(), 4000);
  {
    at::Tensor scratch = at::empty({5000}, at::kFloat);
  }
  at::Tensor y = w + 1;
  meter.forward_done();
  EXPECT_EQ(meter.kept_bytes(), 4000);
  EXPECT_EQ(meter.peak_bytes(), meter.base_bytes() + 20'000);
}

TEST(Meter, ANewMeterStartsANewPeak) {
  Meter first;
  {
    at::Tensor scratch = at::empty({50'000}, at::kFloat);
  }
  EXPECT_EQ(first.peak_bytes(), first.base_bytes() + 200'000);
  Meter second;
  EXPECT_EQ(second.peak_bytes(), second.base_bytes());
}

TEST(Meter, NestedMetersKeepTheirOwnPeaks) {
  const auto touch = [](int64_t bytes) { at::empty({bytes}, at::kByte); };
  Meter outer;
  touch(4'000'000);
  {
    const Meter inner;
    EXPECT_EQ(outer.peak_bytes() - outer.base_bytes(), 4'000'000);
    touch(1'000'000);
    EXPECT_EQ(inner.peak_bytes() - inner.base_bytes(), 1'000'000);
    const Meter indexed(c10::Device(c10::kCPU, 0));  // the same device
    EXPECT_EQ(inner.peak_bytes() - inner.base_bytes(), 1'000'000);
  }
  reset_peak();
  EXPECT_EQ(outer.peak_bytes() - outer.base_bytes(), 4'000'000);
  touch(6'000'000);
  EXPECT_EQ(outer.peak_bytes() - outer.base_bytes(), 6'000'000);
}

TEST(Meter, MetersOfManyThreadsMissNoPeak) {
  std::atomic<bool> done{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i)
    others.emplace_back([&] {
      while (!done) Meter();
    });
  for (int i = 0; i < 2000; ++i) {
    const Meter meter;
    at::empty({8'000'000}, at::kByte);
    ASSERT_GE(meter.peak_bytes() - meter.base_bytes(), 8'000'000) << i;
  }
  done = true;
  for (auto& other : others) other.join();
}

TEST(Fork, AChildOfAForkDuringAllocationsAllocates) {
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) at::empty({100'000}, at::kByte);
  });
  for (int i = 0; i < 200; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(5);  // a deadlock ends the child by a signal
      at::empty({100'000}, at::kByte);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "child " << i << " got signal " << WTERMSIG(status);
  }
  done = true;
  other.join();
}

}  // namespace
}  // namespace palimpsest::memory
