// The program of these tests and of dense_block_test.cpp runs CUDA kernels over CPU tensors: the emulator
// executes them.
#include "palimpsest/nn/dense_block.h"
#include "palimpsest/ops/common/backend.h"
#include "palimpsest/ops/exponent_counts.h"
#include "palimpsest/ops/exponent_counts/device_cuda.h"
#include "tests/nn/dense_block_support.h"
#include "tests/support/cuda_emulator/emulator.h"
#include "tests/support/tolerance.h"

namespace palimpsest::nn {
namespace {

const NormOptions kLeakyOnCuda{Strategy::kInplace2, Activation::kLeakyReLU, 0.1};

TEST(DenseBlockOnCuda, ALayerIsTwoLaunchesEachWayBesideItsBottleneck) {
  for (const bool channels_last : {false, true}) {
    auto block = make_block(small_block(DenseStrategy::kFused, kLeakyOnCuda));
    const at::Tensor x = image(at::kDouble, channels_last).requires_grad_();
    block->forward(x);  // the first pass waits for the number of slots
    int64_t before = cuda_emulator::launches();
    const at::Tensor out = block->forward(x);
    EXPECT_EQ(cuda_emulator::launches() - before, 1 + 4 * 4)
        << "statistics, z, and two of the bottleneck, of which the first also counts slots";
    before = cuda_emulator::launches();
    out.sum().backward();
    EXPECT_EQ(cuda_emulator::launches() - before, 1 + 4 * 4) << "features, two of the bottleneck, dz";
  }
}

TEST(DenseBlockOnCuda, RunsByItsOwnKernelsToTheResultsOfTheCpu) {
  for (const bool pre : {true, false})
    for (const auto dtype : {at::kDouble, at::kFloat})
      for (const bool channels_last : {false, true}) {
        const auto run = [&] {
          auto block = make_block(small_block(DenseStrategy::kFused, kLeakyOnCuda, pre), dtype);
          return step(block, image(dtype, channels_last));
        };
        const auto got = run();
        ops::run_cpu_tensors_on(ops::Backend::kCpu);
        const auto want = run();
        ops::run_cpu_tensors_on(ops::Backend::kCuda);
        for (std::size_t i = 0; i < want.size(); ++i)
          EXPECT_LE(relative_error(got[i], want[i]),
                    dtype == at::kDouble ? testing::kReorderedF64 : testing::kReorderedF32)
              << "result " << i;
      }
}

TEST(DenseBlockOnCuda, RunningStatisticsOfAnotherTypeMoveToo) {
  auto block = make_block(small_block(DenseStrategy::kFused, kLeakyOnCuda), at::kBFloat16);
  auto plain = make_block(small_block(DenseStrategy::kSharedGradient, kLeakyOnCuda), at::kBFloat16);
  EXPECT_EQ(block->buffers()[0].scalar_type(), at::kBFloat16);
  block->forward(image(at::kBFloat16));
  plain->forward(image(at::kBFloat16));
  const auto limit = testing::tolerance(DType::bf16).relative_l2;
  for (std::size_t i = 0; i < block->buffers().size(); ++i)
    EXPECT_LE(relative_error(block->buffers()[i], plain->buffers()[i]), limit) << "buffer " << i;
}

TEST(ExponentCountsOnCuda, AreThoseOfTheCpu) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    torch::manual_seed(1);
    const at::Tensor values = torch::randn({3, 5, 7, 11}).to(dtype);
    const auto got = ops::exponent_counts_detail::count_on_gpu(values);
    const auto want = ops::exponent_counts(values);
    int64_t all = 0;
    for (std::size_t i = 0; i < want.finite.size(); ++i) {
      EXPECT_EQ(got[i + 1], want.finite[i]) << "bin " << i;
      all += want.finite[i];
    }
    EXPECT_EQ(all + want.zero, values.numel());
  }
}

}  // namespace
}  // namespace palimpsest::nn
