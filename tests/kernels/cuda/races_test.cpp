// Every kernel with few values, for ThreadSanitizer, whose report fails the program. Without it the values
// are checked.
#include "palimpsest/kernels/cuda/channel_slots.h"
#include "palimpsest/kernels/cuda/exponent_histogram.h"
#include "tests/kernels/channel_slots_case.h"
#include "tests/kernels/cuda/abn_emulated.h"
#include "tests/kernels/cuda/dense_block_emulated.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

namespace palimpsest::testing {
namespace {

/// On the device that is emulated now.
void expect_right_here(const AbnCase& c, int64_t launches) {
  SCOPED_TRACE(::testing::Message() << c);
  AbnTensors<float> got(c);
  AbnTensors<double, float> want(c);
  const int64_t before = cuda_emulator::launches();
  run_cuda(c, got);
  EXPECT_EQ(cuda_emulator::launches() - before, 2 * launches);  // forward and backward
  kernels::reference::abn_forward(c.problem<double>(), kEps, want.forward(c));
  kernels::reference::abn_backward(c.problem<double>(), want.backward(c));
  EXPECT_TRUE(close(got.dx.values(), want.dx.values(), tolerance(DType::f32), c.seed));
  EXPECT_TRUE(close(got.z.values(), want.z.values(), tolerance(DType::f32), c.seed));
  EXPECT_TRUE(close(got.var.values(), want.var.values(), tolerance(DType::f32), c.seed));
}

void expect_right(const AbnCase& c, Path path, int64_t launches) {
  SCOPED_TRACE(name_of(path));
  const EmulatedDevice device(path, Order::kRandom);
  expect_right_here(c, launches);
}

TEST(CudaRaces, NoneWhereTheLastBlockAddsUpThePlanesSegments) {
  expect_right({.shape = {1, 1, 8197}}, Path::kTwoLaunches, 2);
}

TEST(CudaRaces, NoneWhereTheLastBlockAddsUpTheColumnsSegments) {
  expect_right({.shape = {1, 12, 700}, .layout = Layout::kChannelsLast}, Path::kTwoLaunches, 2);
  expect_right({.shape = {1, 2, 2100}, .layout = Layout::kChannelsLast}, Path::kTwoLaunches, 2);
}

TEST(CudaRaces, NoneWhereAPanelStaysInOneBlock) {
  expect_right({.shape = {3, 2, 41}}, Path::kOneBlock, 1);
  expect_right({.shape = {1, 8, 41}, .layout = Layout::kChannelsLast}, Path::kOneBlock, 1);
}

TEST(CudaRaces, NoneWhereAPanelStaysInACluster) {
  expect_right({.shape = {2, 1, 514}}, Path::kClusters, 1);
  expect_right({.shape = {1, 8, 70}, .layout = Layout::kChannelsLast}, Path::kClusters, 1);
}

TEST(CudaRaces, NoneWhereAStripStaysInOneBlockOrInACluster) {
  for (const int blocks : {1, 2}) {
    const ClusterDevice device(blocks, Order::kRandom);
    expect_right_here({.shape = {3, 4, 9}}, 1);
    EXPECT_EQ(cuda_emulator::last_launch().grid.x, static_cast<unsigned>(blocks));
  }
}

TEST(CudaRaces, NoneWhereTheLastBlockNumbersTheSlots) {
  const WithOrder order(Order::kRandom);
  expect_slots_equal_the_reference(
      {DType::f32, {1, 20, 3}, Layout::kNCHW, 3, 5, true, true},
      [&](const kernels::AbnProblem& problem, const kernels::ChannelSlots& tensors) {
        const auto workspace = any_content(kernels::cuda::choose_slots_workspace_bytes(problem));
        kernels::cuda::choose_slots(problem, tensors, {nullptr, workspace.get()});
      });
}

TEST(CudaRaces, NoneWhereAForwardPassReportsTheSlots) {
  for (const Path path : {Path::kTwoLaunches, Path::kClusters}) {
    const EmulatedDevice device(path, Order::kRandom);
    expect_slots_equal_the_reference({DType::f32, {1, 1, 1030}, Layout::kNCHW, 2, 0},
                                     [&](const kernels::AbnProblem& problem, kernels::ChannelSlots tensors) {
                                       if (tensors.index)
                                         return kernels::reference::choose_slots(problem, tensors);
                                       const AbnCase c{.shape = problem.shape};
                                       AbnTensors<float> t(c);
                                       const kernels::SlotChoice choice{problem, tensors};
                                       run_cuda_forward(c, t, {}, &choice);
                                     });
  }
}

TEST(CudaRaces, NoneWhereTheLastBlockAddsUpTheSumsOfADenseBlocksLayer) {
  for (const DenseCase& c :
       {DenseCase{1, 8200, 1, 1, 1}, DenseCase{1, 300, 4, 8, 4, Layout::kChannelsLast}}) {
    const WithOrder order(Order::kRandom);
    CudaDense<float> t(c);
    t.forward();
    t.backward(t.all_gradients());
    double sum = 0;  // of the gradients that ReLU lets through in channel 0
    const CudaDense<float> before(c);
    for (int64_t i = 0; i < t.h.size(); i += c.c)
      if (t.h.values()[static_cast<std::size_t>(i)] > 0)
        sum += static_cast<double>(before.dh.values()[static_cast<std::size_t>(i)]);
    EXPECT_TRUE(close(std::span<const float>(&t.dbias[0], 1), std::span<const double>(&sum, 1),
                      tolerance(DType::f32), c.seed));
  }
}

TEST(CudaRaces, NoneInTheTablesOfExponents) {
  const std::vector<float> values(70000, 0.75f);
  kernels::ExponentHistogram counts{};
  const WithOrder order(Order::kRandom);
  kernels::cuda::exponent_histogram(DType::f32, values.data(), 70000, counts.data(), nullptr);
  EXPECT_EQ(counts[static_cast<std::size_t>(kernels::bin_of_exponent(-1))], 70000);
}

}  // namespace
}  // namespace palimpsest::testing
