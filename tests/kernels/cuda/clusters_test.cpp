// The blocks per panel of resident launches, over what devices answer to the occupancy query.
#include "palimpsest/kernels/cuda/device/clusters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

namespace palimpsest::testing {
namespace {

using kernels::cuda::ResidentWork;

/// Multiprocessors per GPC. A cluster lies in one GPC, and a multiprocessor runs two of our blocks.
using Gpcs = std::vector<int>;
const Gpcs kEven{16, 16, 18, 16, 16, 16, 18, 16};      // 132: an H100 or H200
const Gpcs kOneShort{14, 16, 18, 18, 16, 16, 18, 16};  // 132 as well
const Gpcs kMigSlice{16};
const Gpcs kTiny{2, 2, 2, 2, 2, 2, 2, 2};  // no GPC has room for 8 blocks

struct Asked {
  int blocks = 0;
  std::map<int, int> queries;  // blocks: how often the device was asked
};

constexpr int64_t kBesides = 12 * 1024;

/// A pass over `tensors` tensors of `bytes` each, whose panels stay in shared memory.
Asked choose(const Gpcs& gpcs, int64_t panels, int64_t bytes, int tensors = 1, int max_cluster = 8,
             int64_t shared = 227 * 1024) {
  int multiprocessors = 0;
  for (const int own : gpcs) multiprocessors += own;
  const ResidentWork work{.panels = panels,
                          .bytes = bytes,
                          .passes = tensors + 1,
                          .passes_of_two = 2 * tensors + 1,
                          .shared = shared,
                          .besides = kBesides,
                          .multiprocessors = multiprocessors,
                          .max_cluster = max_cluster};
  const auto share = [&](int blocks) { return tensors * bytes / panels / blocks; };
  Asked asked;
  asked.blocks = kernels::cuda::blocks_per_panel(work, share, [&](int blocks) {
    ++asked.queries[blocks];
    const int64_t per_multiprocessor = std::min<int64_t>(2, shared / (share(blocks) + kBesides));
    int64_t clusters = 0;
    for (const int own : gpcs) clusters += per_multiprocessor * own / blocks;
    return clusters;
  });
  return asked;
}

// (64, 1024, 14, 14) of 16 bits, channels-last: panels of 32 channels, 100352 bytes in each of 8 blocks.
constexpr int64_t kPanels = 32, kBytes = int64_t{64} * 1024 * 14 * 14 * 2;

TEST(CudaClusters, TheDeviceIsAskedOnceWhereAllClustersRunAtOnce) {
  const Asked asked = choose(kEven, kPanels, kBytes);
  EXPECT_EQ(asked.blocks, 8);
  EXPECT_EQ(asked.queries, (std::map<int, int>{{8, 1}}));
}

TEST(CudaClusters, TwoLaunchesWhereAShortGpcWouldMakeASecondWave) {
  EXPECT_EQ(choose(kOneShort, kPanels, kBytes).blocks, 0);
}

TEST(CudaClusters, SmallerOnesWhereTheseRunAtOnce) {
  EXPECT_EQ(choose(kEven, kPanels, kBytes / 2).blocks, 8);
  EXPECT_EQ(choose(kOneShort, kPanels, kBytes / 2).blocks, 4);  // 66 of 4 blocks run at once, 31 of 8
}

TEST(CudaClusters, ASecondWaveStaysWhereItIsWellFilledOrTheTensorSmall) {
  EXPECT_EQ(choose(kOneShort, 62, 62 * kBytes / kPanels).blocks, 8);  // two full waves
  EXPECT_EQ(choose(kOneShort, 64, 64 * kBytes / kPanels).blocks, 0);  // three for two, and waits in each
  EXPECT_EQ(choose(kOneShort, 36, 36 * kBytes / kPanels).blocks, 0);  // two for a little more than one
  EXPECT_EQ(choose(kOneShort, 300, 300 * 6272, 1, 1).blocks, 1);  // a launch costs more than the idle time
  EXPECT_EQ(choose(kOneShort, 300, int64_t{300} * 100000, 1, 1).blocks, 0);
}

TEST(CudaClusters, ManyWavesOfSingleBlocksAreTheUsualChoice) {
  for (const Gpcs& gpcs : {kEven, kOneShort}) EXPECT_EQ(choose(gpcs, 2048, int64_t{2048} * 100000).blocks, 1);
}

TEST(CudaClusters, TwoLaunchesWhereTheDeviceRefusesClusters) {
  EXPECT_EQ(choose(kTiny, kPanels, kPanels * 8 * 100352).blocks, 0);  // 0 clusters of 8 at once
  EXPECT_EQ(choose(kTiny, kPanels, kPanels * 90000).blocks, 1);       // a panel fits into one block
  EXPECT_EQ(choose(kMigSlice, 64, int64_t{64} * 800000).blocks, 8);   // full waves of 4 clusters
}

TEST(CudaClusters, DevicesWithoutClustersKeepWhatFitsIntoABlock) {
  const Gpcs a100{108};
  const int64_t shared = 163 * 1024;
  EXPECT_EQ(choose(a100, 216, int64_t{216} * 70000, 1, 1, shared).blocks, 1);
  EXPECT_EQ(choose(a100, 216, int64_t{216} * 72000, 1, 1, shared).blocks, 0);  // does not fit
  EXPECT_EQ(choose(a100, 100, int64_t{100} * 70000, 1, 1, shared).blocks, 0);  // leaves multiprocessors idle
}

TEST(CudaClusters, WaitsOfAResidentLaunchCountAgainstThePassThatItSaves) {
  const auto with_residual = [](int64_t bytes) {  // a tensor that both choices read once
    const ResidentWork work{.panels = 256,
                            .bytes = bytes,
                            .passes = 3,
                            .passes_of_two = 4,
                            .shared = int64_t{227} * 1024,
                            .multiprocessors = 132};
    return kernels::cuda::blocks_per_panel(
        work, [](int) { return int64_t{64} * 1024; }, [](int) { return int64_t{256}; });
  };
  EXPECT_EQ(with_residual(int64_t{16} * 1024 * 1024), 1);
  EXPECT_EQ(with_residual(int64_t{1024} * 1024 * 1024), 0);  // 4.05 passes for 4
}

TEST(CudaClusters, BackwardHoldsTwoTensors) {
  EXPECT_EQ(choose(kEven, kPanels, kBytes / 2, 2).blocks, 8);
  EXPECT_EQ(choose(kEven, kPanels, kBytes, 2).blocks, 0);
  EXPECT_EQ(choose(kOneShort, kPanels, kBytes / 2, 2).blocks,
            0);  // 1.94 waves; two launches: 1.67 and a launch
}

// (64, 2048, 7, 7) of 16 bits, channels-last: 64 panels of 32 channels, 200704 bytes of each tensor, on an H100 that runs 62
// clusters of 4 blocks.
TEST(CudaClusters, OneBlockPerMultiprocessorWhereOnlySoAllPanelsAreOnTheDeviceAtOnce) {
  const auto blocks = [](int64_t panels) {
    const ResidentWork work{.panels = panels,
                            .bytes = panels * 200704,
                            .passes = 3,
                            .passes_of_two = 5,
                            .shared = int64_t{227} * 1024,
                            .besides = kBesides,
                            .multiprocessors = 132,
                            .max_cluster = 8};
    return kernels::cuda::blocks_per_panel(
        work, [](int of) { return int64_t{2} * 200704 / of; },
        [](int of) {
          return int64_t{of == 8 ? 30 : of == 4 ? 62 : of == 2 ? 66 : 0};
        });
  };
  EXPECT_EQ(blocks(62), 4);  // one wave, two blocks to a multiprocessor
  EXPECT_EQ(blocks(64), 2);  // one wave of 128 blocks on 132 multiprocessors
  EXPECT_EQ(blocks(72), 8);  // two waves: two blocks to a multiprocessor again
}

}  // namespace
}  // namespace palimpsest::testing
