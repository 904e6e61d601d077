// The counters of launches whose blocks hand over sums: one set per stream, device and graph, 0 between
// launches, and what remains of a launch that failed.
#include "palimpsest/kernels/cuda/device/counters.h"

#include "palimpsest/kernels/cuda/device/platform.cuh"
#include "palimpsest/kernels/cuda/device/reduce.cuh"
#include "palimpsest/kernels/cuda/device/workspace.h"
#include "tests/kernels/cuda/emulated.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace palimpsest::testing {
namespace {

using cuda_emulator::Capture;
using cuda_emulator::EmulatorError;
using kernels::cuda::counters_of;
using kernels::cuda::Stream;

/// A stream that no other test has used.
Stream new_stream() {
  static std::uintptr_t last = 0x1000;
  return reinterpret_cast<Stream>(last += 16);  // NOLINT(performance-no-int-to-ptr)
}

bool are_zero(const unsigned* counters) {
  const auto* const end = counters + kernels::cuda::kMostPanelsInSegments;
  return std::all_of(counters, end, [](unsigned counter) { return counter == 0; });
}

constexpr unsigned kBlocks = 5;

/// `last` counts the blocks that are the last; the third block fails on request.
__global__ void hand_over(unsigned* counter, unsigned* last, bool fails) {
  if (fails && blockIdx.x == 2) cuda_emulator::fail("planted");
  if (kernels::cuda::is_last_block(counter, gridDim.x) && threadIdx.x == 0) ++*last;
}

/// Returns the number of blocks that took themselves for the last.
unsigned launch_hand_over(Stream stream, bool fails) {
  unsigned last = 0;
  kernels::cuda::with_workspace({stream, nullptr}, true, [&](const kernels::cuda::Workspace& workspace) {
    kernels::cuda::launch("hand_over", {.blocks = kBlocks, .threads = 32}, stream, hand_over,
                          workspace.counters, &last, fails);
  });
  return last;
}

class CudaCounters : public ::testing::Test {
 protected:
  ~CudaCounters() override { cuda_emulator::settings() = {}; }
};

TEST_F(CudaCounters, AreZeroAndThoseOfTheStreamInEveryCall) {
  std::set<unsigned*> all;
  std::vector<Stream> streams(100);
  for (Stream& stream : streams) {
    stream = new_stream();
    unsigned* const counters = counters_of(stream);
    EXPECT_TRUE(are_zero(counters));
    EXPECT_EQ(counters_of(stream), counters);
    all.insert(counters);
  }
  EXPECT_EQ(all.size(), streams.size());
  for (auto next = all.begin(); std::next(next) != all.end(); ++next)
    EXPECT_GE(*std::next(next) - *next, kernels::cuda::kMostPanelsInSegments);
}

TEST_F(CudaCounters, OfTwoDevicesAreTwo) {
  const Stream stream = new_stream();
  unsigned* const first = counters_of(stream);
  cuda_emulator::settings().device = 1;
  EXPECT_NE(counters_of(stream), first);
  cuda_emulator::settings().device = 0;
  EXPECT_EQ(counters_of(stream), first);
}

TEST_F(CudaCounters, AreAllocatedOncePer32Streams) {
  cuda_emulator::settings().device = 2;
  const int64_t before = cuda_emulator::device_allocations();
  for (int i = 0; i < 64; ++i) counters_of(new_stream());
  EXPECT_EQ(cuda_emulator::device_allocations() - before, 2);
}

TEST_F(CudaCounters, AreZeroAgainAfterALaunchThatFailedMidway) {
  const Stream stream = new_stream();
  unsigned* const counters = counters_of(stream);
  EXPECT_EQ(launch_hand_over(stream, false), 1u);
  EXPECT_THROW(launch_hand_over(stream, true), EmulatorError);
  EXPECT_TRUE(are_zero(counters));
  EXPECT_EQ(launch_hand_over(stream, false), 1u);
  EXPECT_EQ(counters_of(stream), counters);
}

TEST_F(CudaCounters, ThatCannotBeClearedAreNeverUsedAgain) {
  const Stream stream = new_stream();
  unsigned* const counters = counters_of(stream);
  cuda_emulator::settings().can_clear = false;
  EXPECT_THROW(launch_hand_over(stream, true), EmulatorError);
  EXPECT_FALSE(are_zero(counters));
  cuda_emulator::settings() = {};
  EXPECT_NE(counters_of(stream), counters);
  EXPECT_EQ(launch_hand_over(stream, false), 1u);
  for (int i = 0; i < 100; ++i) EXPECT_NE(counters_of(new_stream()), counters);
}

TEST_F(CudaCounters, OfAGraphAreNotThoseOfItsStreamOrOfAnotherGraph) {
  const Stream stream = new_stream(), other_stream = new_stream();
  unsigned* const eager = counters_of(stream);
  std::set<unsigned*> all{eager, counters_of(other_stream)};
  {
    const Capture graph(stream);
    unsigned* const recorded = counters_of(stream);
    EXPECT_EQ(counters_of(stream), recorded);
    all.insert(recorded);
  }
  {
    const Capture graph(stream), fork(other_stream);
    all.insert(counters_of(stream));
    all.insert(counters_of(other_stream));
  }
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(counters_of(stream), eager);
}

TEST_F(CudaCounters, OfADestroyedGraphServeLaterGraphs) {
  cuda_emulator::settings().device = 3;
  const Stream stream = new_stream();
  const int64_t before = cuda_emulator::device_allocations();
  unsigned* first = nullptr;
  bool came_back = false;
  for (int i = 0; i < 100; ++i) {
    Capture graph(stream);
    unsigned* const counters = counters_of(stream);
    EXPECT_TRUE(are_zero(counters));
    came_back |= counters == first;
    EXPECT_TRUE(i != 1 || counters != first) << "used again at once";
    if (i == 0) first = counters;
    graph.destroy_graph();
  }
  EXPECT_TRUE(came_back);
  EXPECT_EQ(cuda_emulator::device_allocations() - before, 1);
}

TEST_F(CudaCounters, OfAGraphThatFailedAndCouldNotClearThemDoNotComeBack) {
  cuda_emulator::settings().device = 4;
  const Stream stream = new_stream();
  Capture graph(stream);
  unsigned* const counters = counters_of(stream);
  cuda_emulator::settings().can_clear = false;
  EXPECT_THROW(launch_hand_over(stream, true), EmulatorError);
  graph.destroy_graph();
  for (int i = 0; i < 100; ++i) EXPECT_NE(counters_of(new_stream()), counters);
}

TEST_F(CudaCounters, WithoutDeviceMemorySayWhatToDoAndComeWhenThereIsSome) {
  cuda_emulator::settings().device = 5;
  cuda_emulator::settings().has_device_memory = false;
  const Stream stream = new_stream();
  try {
    counters_of(stream);
    ADD_FAILURE() << "did not throw";
  } catch (const std::runtime_error& e) {
    EXPECT_EQ(std::string(e.what()),
              "[counters] a new stream or graph needs 262144 bytes of device memory outside of libtorch's "
              "pools, got: out of memory (free some, for instance by torch.cuda.empty_cache())");
  }
  cuda_emulator::settings().has_device_memory = true;
  EXPECT_TRUE(are_zero(counters_of(stream)));
}

TEST_F(CudaCounters, AreOfOneStreamWhicheverThreadsAskAtOnce) {
  cuda_emulator::settings().device = 6;
  constexpr std::size_t kThreads = 8, kStreams = 50;
  std::vector<Stream> streams(kStreams);
  for (Stream& stream : streams) stream = new_stream();
  std::vector<std::vector<unsigned*>> got(kThreads);
  std::vector<std::thread> threads;
  for (auto& own : got)
    threads.emplace_back([&] {
      for (const Stream stream : streams) own.push_back(counters_of(stream));
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& own : got) EXPECT_EQ(own, got[0]);
  EXPECT_EQ(std::set<unsigned*>(got[0].begin(), got[0].end()).size(), kStreams);
}

}  // namespace
}  // namespace palimpsest::testing
