// Every kernel once or twice over a few values, for ThreadSanitizer to watch: its report fails the program.
// Without it the same cases are checked by their values.
#include "palimpsest/kernels/cuda/exponent_histogram.h"
#include "tests/kernels/cuda/abn_emulated.h"
#include "tests/kernels/cuda/dense_emulated.h"
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

TEST(CudaRaces, NoneWhereTheLastBlockPutsTheSumsOfADenseBlocksLayerTogether) {
  for (const DenseCase& c :
       {DenseCase{1, 8200, 1, 1, 1}, DenseCase{1, 300, 4, 8, 4, Layout::kChannelsLast}}) {
    cuda_emulator::settings().order = cuda_emulator::Order::kRandom;
    CudaDense<float> t(c);
    t.forward();
    t.backward(t.all_gradients());
    cuda_emulator::settings() = {};
    double sum = 0;  // of the gradient that ReLU lets through
    const CudaDense<float> before(c);
    for (int64_t i = 0; i < t.h.size(); i += c.c)
      if (t.h.values()[static_cast<std::size_t>(i)] > 0)
        sum += static_cast<double>(before.dh.values()[static_cast<std::size_t>(i)]);
    EXPECT_NEAR(static_cast<double>(t.dbias[0]), sum, 1e-3 * std::abs(sum) + 1e-3);
  }
}

TEST(CudaRaces, NoneInTheTablesOfExponents) {
  const std::vector<float> values(70000, 0.75f);
  kernels::ExponentHistogram counts{};
  const cuda_emulator::Order before = cuda_emulator::settings().order;
  cuda_emulator::settings().order = cuda_emulator::Order::kRandom;
  kernels::cuda::exponent_histogram(DType::f32, values.data(), 70000, counts.data(), nullptr);
  cuda_emulator::settings().order = before;
  EXPECT_EQ(counts[static_cast<std::size_t>(kernels::bin_of_exponent(-1))], 70000);
}

}  // namespace
}  // namespace palimpsest::testing
