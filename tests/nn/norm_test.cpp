#include "palimpsest/nn/norm.h"
#include "palimpsest/nn/state_dict.h"
#include "tests/nn/support.h"

#include <sstream>

namespace palimpsest::nn {
namespace {

struct Case {
  Activation activation;
  double param;
  bool in_place;
};

class NormStrategies : public ::testing::TestWithParam<Case> {};

TEST_P(NormStrategies, GiveTheSameOutputGradientsAndRunningStatistics) {
  const auto [activation, param, in_place] = GetParam();
  std::vector<at::Tensor> results[2];
  for (const auto strategy : {Strategy::kStandard, Strategy::kInplace2}) {
    Norm norm(4, NormOptions{strategy, activation, param, in_place});
    norm->to(torch::kFloat64);
    {
      torch::NoGradGuard no_grad;
      norm->weight.copy_(torch::tensor({1.5, -0.5, 0.7, 2.0}, torch::kFloat64));
      norm->bias.copy_(torch::tensor({0.1, 0.3, -0.4, 0.0}, torch::kFloat64));
    }
    auto x = leaf({3, 4, 5, 6});
    const auto z = norm->forward(x * 1);
    torch::sin(z * 2).sum().backward();
    results[strategy == Strategy::kStandard ? 0 : 1] = {
        z, x.grad(), norm->weight.grad(), norm->bias.grad(), norm->running_mean, norm->running_var};
  }
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_LE(relative_error(results[1][i], results[0][i]), kSameMaths) << "result " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Activations, NormStrategies,
                         ::testing::Values(Case{Activation::kLeakyReLU, 0.01, true},
                                           Case{Activation::kLeakyReLU, 0.01, false},
                                           Case{Activation::kELU, 1, true},
                                           Case{Activation::kELU, 0.5, false},
                                           Case{Activation::kIdentity, 0, true}));

TEST(Norm, TheKeysDoNotDependOnTheStrategy) {
  const auto standard = state_dict(*Norm(4, NormOptions{Strategy::kStandard}));
  const auto in_place = state_dict(*Norm(4, NormOptions{Strategy::kInplace2}));
  ASSERT_EQ(standard.size(), in_place.size());
  for (std::size_t i = 0; i < standard.size(); ++i) EXPECT_EQ(standard[i].first, in_place[i].first);
}

TEST(Norm, EitherStrategyRefusesOneValuePerChannelInTraining) {
  for (const auto strategy : {Strategy::kStandard, Strategy::kInplace2}) {
    Norm norm(4, NormOptions{strategy});
    EXPECT_ANY_THROW(norm->forward(torch::randn({1, 4, 1, 1}))) << to_string(strategy);
  }
}

TEST(Norm, OnlyTheInPlaceStrategyWritesOverItsInput) {
  const auto x = torch::randn({2, 4, 3, 3});
  const auto before = x.clone();
  Norm(4, NormOptions{Strategy::kStandard})->forward(x);
  Norm(4, NormOptions{Strategy::kInplace2}.out_of_place())->forward(x);
  EXPECT_TRUE(torch::equal(x, before));
  const auto z = Norm(4, NormOptions{Strategy::kInplace2})->forward(x);
  EXPECT_EQ(z.data_ptr(), x.data_ptr());
}

TEST(Norm, ACloneIsANormOfTheSameStrategy) {
  Norm norm(4, NormOptions{Strategy::kStandard});
  const auto copy = std::dynamic_pointer_cast<NormImpl>(norm->clone());
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->strategy, Strategy::kStandard);
}

TEST(Norm, PrintsItsStrategyAndActivation) {
  std::ostringstream text;
  text << Norm(4, NormOptions{}) << Norm(2, NormOptions{Strategy::kStandard}.identity());
  EXPECT_EQ(text.str(),
            "palimpsest::nn::Norm(4, strategy=inplace_2, activation=leaky_relu[0.01])"
            "palimpsest::nn::Norm(2, strategy=standard, activation=identity)");
}

}  // namespace
}  // namespace palimpsest::nn
