#include "tests/ops/abn_case.h"
#include "tests/support/cuda_emulator/emulator.h"

#include <gtest/gtest.h>

namespace palimpsest::ops::tests {
namespace {

TEST(AbnOnCuda, ALayerIsOneOrTwoLaunchesOfKernelsEachWayAndOneThatChoosesChannels) {
  for (const auto& [shape, each] : {std::pair<std::vector<int64_t>, int64_t>{{4, 160, 6, 6}, 1},
                                    std::pair<std::vector<int64_t>, int64_t>{{4, 3, 60, 60}, 2}})
    for (const bool in_place : {false, true}) {
      AbnCase c = make_case(shape, at::kFloat);
      const int64_t choice = 2;  // the weight is new: they are counted first
      int64_t before = cuda_emulator::launches();
      run_layer(c, in_place);
      EXPECT_EQ(cuda_emulator::launches() - before, choice + 2 * each);

      c.options.training = false;
      before = cuda_emulator::launches();
      expect_right(c, in_place);
      EXPECT_EQ(cuda_emulator::launches() - before, choice + 4)
          << "frozen statistics and apply, reduce and apply";
    }
}

}  // namespace
}  // namespace palimpsest::ops::tests
