// Every kernel once or twice over a few values, for ThreadSanitizer to watch: its report fails the program.
// Without it the same cases are checked by their values.
#include "tests/kernels/cuda/abn_emulated.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>

namespace palimpsest::testing {
namespace {

void expect_right(const AbnCase& c, Path path, int64_t launches) {
  SCOPED_TRACE(::testing::Message() << c << ", " << name_of(path));
  const Device device(path, cuda_emulator::Order::kRandom);
  AbnTensors<float> got(c);
  AbnTensors<double, float> want(c);
  const int64_t before = cuda_emulator::launches();
  run_cuda(c, got);
  EXPECT_EQ(cuda_emulator::launches() - before, 2 * launches);  // forward and backward
  kernels::reference::abn_forward(c.layer<double>(), kEps, want.forward(c));
  kernels::reference::abn_backward(c.layer<double>(), want.backward(c));
  EXPECT_TRUE(close(got.dx.values(), want.dx.values(), tolerance(DType::f32), c.seed));
  EXPECT_TRUE(close(got.z.values(), want.z.values(), tolerance(DType::f32), c.seed));
  EXPECT_TRUE(close(got.var.values(), want.var.values(), tolerance(DType::f32), c.seed));
}

TEST(CudaRaces, NoneWhereTheLastBlockPutsTheSegmentsOfAPlaneTogether) {
  expect_right({.shape = {1, 1, 8197}}, Path::kTwoLaunches, 2);
}

TEST(CudaRaces, NoneWhereTheLastBlockPutsTheSegmentsOfColumnsTogether) {
  expect_right({.shape = {1, 12, 700}, .layout = Layout::kChannelsLast}, Path::kTwoLaunches, 2);
}

TEST(CudaRaces, NoneWhereAPanelStaysInOneBlock) {
  expect_right({.shape = {3, 2, 41}}, Path::kOneBlock, 1);
  expect_right({.shape = {1, 8, 41}, .layout = Layout::kChannelsLast}, Path::kOneBlock, 1);
}

TEST(CudaRaces, NoneWhereAPanelStaysInACluster) {
  expect_right({.shape = {2, 1, 514}}, Path::kClusters, 1);
  expect_right({.shape = {1, 8, 70}, .layout = Layout::kChannelsLast}, Path::kClusters, 1);
}

}  // namespace
}  // namespace palimpsest::testing
