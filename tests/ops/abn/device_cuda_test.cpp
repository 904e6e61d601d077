#include "palimpsest/memory/counting_allocator.h"
#include "tests/ops/abn_case.h"
#include "tests/support/cuda_emulator/emulator.h"

#include <gtest/gtest.h>

namespace palimpsest::ops::tests {
namespace {

TEST(AbnOnCuda, ALayerIsOneOrTwoLaunchesOfKernelsEachWay) {
  for (const auto& [shape, each] : {std::pair<std::vector<int64_t>, int64_t>{{4, 160, 6, 6}, 1},
                                    std::pair<std::vector<int64_t>, int64_t>{{4, 3, 60, 60}, 2}})
    for (const bool in_place : {false, true}) {
      AbnCase c = make_case(shape, at::kFloat);
      const int64_t first_count = 1;  // the weight is new: the host waits for the number of channels
      int64_t before = cuda_emulator::launches();
      run_layer(c, in_place);
      EXPECT_EQ(cuda_emulator::launches() - before, first_count + 2 * each);

      c.options.training = false;
      before = cuda_emulator::launches();
      expect_right(c, in_place);
      EXPECT_EQ(cuda_emulator::launches() - before, first_count + 5)
          << "the choice, frozen statistics and apply, reduce and apply";
    }
}

TEST(AbnOnCuda, TheChoiceOfChannelsIsALaunchOfItsOwnWhereItSamplesAResidual) {
  AbnCase c = make_case({4, 160, 6, 6}, at::kFloat);
  c.residual = torch::randn_like(c.base).set_requires_grad(true);
  const int64_t before = cuda_emulator::launches();
  run_layer(c, false);
  EXPECT_EQ(cuda_emulator::launches() - before, 1 + 1 + 2) << "the first count, the choice, and the layer";
}

// What stayed would lie in the memory pool of a CUDA graph, or in that of torch.cuda.MemPool.
TEST(AbnOnCuda, NothingStaysAllocatedBehindALayerWhoseBlocksHandOverSums) {
  const auto run = [](std::vector<int64_t> shape) {
    AbnCase c = make_case(std::move(shape), at::kFloat);
    run_layer(c, false);
  };
  run({4, 3, 60, 60});
  const int64_t before = memory::memory_stats().current_bytes;
  run({4, 3, 200, 200});  // needs more than the layer before
  EXPECT_EQ(memory::memory_stats().current_bytes, before);
}

}  // namespace
}  // namespace palimpsest::ops::tests
