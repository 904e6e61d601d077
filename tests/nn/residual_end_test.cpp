#include "palimpsest/nn/residual_end.h"
#include "tests/nn/support.h"

namespace palimpsest::nn {
namespace {

constexpr NormOptions kInPlace{Strategy::kInplace2};

TEST(ResidualEnd, LeavesTheBranchAloneInPlaceBecauseItsNormalizationKeepsIt) {
  const auto branch = torch::tensor({1.0, -2.0}), shortcut = torch::tensor({1.0, 1.0});
  const auto out = add_and_activate(branch, shortcut, kInPlace);
  EXPECT_TRUE(torch::allclose(out, torch::tensor({2.0, -0.01})));
  EXPECT_TRUE(torch::equal(branch, torch::tensor({1.0, -2.0})));
  const auto standard = add_and_activate(branch, shortcut, NormOptions{Strategy::kStandard});
  EXPECT_EQ(standard.data_ptr(), branch.data_ptr());
  EXPECT_TRUE(torch::equal(standard, out));
}

struct Case {
  Activation activation;
  double param;
  at::MemoryFormat branch, shortcut;
};

class ResidualEnds : public ::testing::TestWithParam<Case> {};

// 3 * 20 * 41 * 50 values: more than one piece, and a last one that is not full.
TEST_P(ResidualEnds, OutputAndGradientsAreThoseOfTheSumAndTheActivation) {
  const auto c = GetParam();
  const auto branch = leaf({3, 20, 41, 50}, 1), shortcut = leaf({3, 20, 41, 50}, 2);
  std::vector<at::Tensor> results[2];
  for (const auto strategy : {Strategy::kStandard, Strategy::kInplace2}) {
    const auto a = (branch * 1).contiguous(c.branch), b = (shortcut * 1).contiguous(c.shortcut);
    const auto out = add_and_activate(a, b, NormOptions{strategy, c.activation, c.param});
    EXPECT_TRUE(out.is_contiguous(c.branch));
    // Through another product, so that the gradient that arrives belongs to nobody else and may be written
    // over.
    auto gradients = torch::autograd::grad({(out * torch::cos(out.detach())).sum()}, {branch, shortcut});
    gradients.push_back(out);
    results[strategy == Strategy::kStandard ? 0 : 1] = gradients;
  }
  for (int i = 0; i < 3; ++i)
    EXPECT_LE(relative_error(results[1][i], results[0][i]), kSameMaths) << "result " << i;
}

constexpr auto kNCHW = at::MemoryFormat::Contiguous, kLast = at::MemoryFormat::ChannelsLast;
INSTANTIATE_TEST_SUITE_P(ActivationsAndLayouts, ResidualEnds,
                         ::testing::Values(Case{Activation::kLeakyReLU, 0.01, kNCHW, kNCHW},
                                           Case{Activation::kLeakyReLU, 0.01, kLast, kLast},
                                           Case{Activation::kLeakyReLU, 0.3, kLast, kNCHW},
                                           Case{Activation::kELU, 0.7, kLast, kLast},
                                           Case{Activation::kIdentity, 0, kNCHW, kNCHW}));

TEST(ResidualEnd, AGradientThatSomebodyElseHoldsIsNotWrittenOver) {
  const auto branch = leaf({2, 3, 4, 4}), shortcut = leaf({2, 3, 4, 4}, 2);
  const auto out = add_and_activate(branch, shortcut, kInPlace);
  const auto dz = torch::full_like(out, 2), before = dz.clone();
  const auto first = torch::autograd::grad({out}, {branch}, {dz}, /*retain_graph=*/true)[0].clone();
  EXPECT_TRUE(torch::equal(dz, before));
  EXPECT_TRUE(torch::equal(torch::autograd::grad({out}, {shortcut}, {dz})[0], first));
}

}  // namespace
}  // namespace palimpsest::nn
