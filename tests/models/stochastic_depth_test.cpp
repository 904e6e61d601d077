#include "palimpsest/memory/recompute.h"
#include "palimpsest/models/inverted_residual.h"
#include "tests/models/support.h"

#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <vector>

namespace palimpsest::models {
namespace {

constexpr int64_t kChannels = 4, kImages = 2000;

std::shared_ptr<InvertedResidual> block_with(double probability,
                                             nn::Strategy strategy = nn::Strategy::kStoreY) {
  InvertedResidualOptions options{.in = kChannels, .expanded = 2 * kChannels, .out = kChannels};
  options.stochastic_depth = probability;
  options.norm = {.strategy = strategy, .activation = nn::Activation::kSiLU};
  auto block = std::make_shared<InvertedResidual>(options);
  fill_by_formula(*block);
  return block;
}

at::Tensor images() {
  return values_by_formula(kImages * kChannels * 9, 0).reshape({kImages, kChannels, 3, 3});
}

/// Returns which images of a training batch leave the branch out: their output is their input.
at::Tensor left_out(const at::Tensor& y, const at::Tensor& x) {
  return (y == x).flatten(1).all(1);
}

TEST(StochasticDepth, LeavesOutTheGivenShareOfImagesAndScalesTheBranchOfTheOthers) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = images(), branch = block_with(0)->forward(x) - x;
  for (const double probability : {0.1, 0.5, 0.8}) {
    torch::manual_seed(1);
    const at::Tensor y = block_with(probability)->forward(x), out = left_out(y, x);
    const double share = out.to(at::kDouble).mean().item<double>();
    const double deviation = std::sqrt(probability * (1 - probability) / kImages);
    EXPECT_NEAR(share, probability, 4 * deviation);
    const at::Tensor kept = out.logical_not();
    EXPECT_LT(relative_error((y - x).index({kept}), branch.index({kept}) / (1 - probability)),
              kReorderedNetworkF64);
  }
}

TEST(StochasticDepth, IsOffInEvalModeAndWithoutAShortcut) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = images();
  const auto block = block_with(0.5), plain = block_with(0);
  block->eval();
  plain->eval();
  EXPECT_TRUE(torch::equal(block->forward(x), plain->forward(x)));
  InvertedResidualOptions wider{.in = kChannels, .expanded = kChannels, .out = kChannels + 1};
  wider.stochastic_depth = 0.5;
  const auto without = std::make_shared<InvertedResidual>(wider);
  fill_by_formula(*without);
  torch::manual_seed(1);
  const at::Tensor first = without->forward(x);
  EXPECT_TRUE(torch::equal(without->forward(x), first)) << "it draws";
}

TEST(StochasticDepth, IsTheSameUnderEveryStrategyAndWhenTheBlockRunsAgain) {
  const auto run = [](nn::Strategy strategy, bool again) {
    const auto block = block_with(0.5, strategy);
    const at::Tensor x = images().requires_grad_();
    torch::manual_seed(7);
    const at::Tensor y =
        again ? memory::recompute([block](const at::Tensor& in) { return block->forward(in); }, x)
              : block->forward(x);
    std::vector<at::Tensor> values{y.detach()};
    y.mul(values_by_formula(y.numel(), 5).reshape(y.sizes())).sum().backward();
    values.push_back(x.grad());
    for (const at::Tensor& parameter : block->parameters()) values.push_back(parameter.grad());
    return values;
  };
  const auto want = run(nn::Strategy::kStandard, false);
  EXPECT_GT(left_out(want[0], images()).sum().item<int64_t>(), kImages / 3);
  for (const auto strategy : {nn::Strategy::kStandard, nn::Strategy::kStoreY, nn::Strategy::kInplaceBit})
    for (const bool again : {false, true}) {
      const auto got = run(strategy, again);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_LT(relative_error(got[i], want[i]), kReorderedNetworkF64)
            << i << " " << nn::to_string(strategy) << " " << again;
    }
}

}  // namespace
}  // namespace palimpsest::models
