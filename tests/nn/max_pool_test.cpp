#include "palimpsest/nn/max_pool.h"

#include "palimpsest/memory/meter.h"
#include "tests/nn/support.h"

namespace palimpsest::nn {
namespace {

TEST(MaxPoolStrategies, GiveTheSameBytesAndSaveAByteForEachOutput) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({2, 8, 12, 14});
  const auto run = [&](Strategy strategy) {
    const at::Tensor leaf = x.clone().set_requires_grad(true);
    memory::Meter meter;
    const at::Tensor out = max_pool2d(leaf * 1, strategy, 3, 2, 1);
    meter.forward_done();
    out.square().sum().backward();
    return std::tuple{out.detach(), leaf.grad(), meter.kept_bytes()};
  };
  const auto [want, want_gradient, standard_bytes] = run(Strategy::kStandard);
  const int64_t input = x.numel() * 4, output = want.numel() * 4;
  EXPECT_GE(standard_bytes, input + output + want.numel() * 8) << "its input and an index of 8 bytes";
  for (const auto strategy : {Strategy::kInplace2, Strategy::kStoreY, Strategy::kCheckpoint}) {
    const auto [got, gradient, bytes] = run(strategy);
    EXPECT_TRUE(got.equal(want)) << to_string(strategy);
    EXPECT_TRUE(gradient.equal(want_gradient)) << to_string(strategy);
    EXPECT_LE(bytes, output + want.numel() + 64) << to_string(strategy);
  }
}

}  // namespace
}  // namespace palimpsest::nn
