#include "palimpsest/nn/batch_norm_act.h"

#include "palimpsest/nn/conv2d.h"
#include "tests/nn/support.h"

#include <sstream>

namespace palimpsest::nn {
namespace {

struct Case {
  Activation activation;
  double param;
  bool in_place;
};

class BatchNormActStrategies : public ::testing::TestWithParam<Case> {};

TEST_P(BatchNormActStrategies, GiveTheSameOutputGradientsAndRunningStatistics) {
  const auto [activation, param, in_place] = GetParam();
  std::vector<at::Tensor> results[2];
  for (const auto strategy : {Strategy::kStandard, Strategy::kInplace2}) {
    BatchNormAct norm(4, NormOptions{strategy, activation, param, in_place});
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

INSTANTIATE_TEST_SUITE_P(Activations, BatchNormActStrategies,
                         ::testing::Values(Case{Activation::kLeakyReLU, 0.01, true},
                                           Case{Activation::kLeakyReLU, 0.01, false},
                                           Case{Activation::kELU, 1, true},
                                           Case{Activation::kELU, 0.5, false},
                                           Case{Activation::kIdentity, 0, true}));

TEST(BatchNormAct, TheKeysDoNotDependOnTheStrategy) {
  const auto standard = state_dict(*BatchNormAct(4, NormOptions{Strategy::kStandard}));
  const auto in_place = state_dict(*BatchNormAct(4, NormOptions{Strategy::kInplace2}));
  ASSERT_EQ(standard.size(), in_place.size());
  for (std::size_t i = 0; i < standard.size(); ++i) EXPECT_EQ(standard[i].first, in_place[i].first);
}

TEST(BatchNormAct, EitherStrategyRefusesOneValuePerChannelInTraining) {
  for (const auto strategy : {Strategy::kStandard, Strategy::kInplace2}) {
    BatchNormAct norm(4, NormOptions{strategy});
    EXPECT_ANY_THROW(norm->forward(torch::randn({1, 4, 1, 1}))) << to_string(strategy);
  }
}

TEST(BatchNormAct, OnlyTheInPlaceStrategyWritesOverItsInput) {
  const auto x = torch::randn({2, 4, 3, 3});
  const auto before = x.clone();
  BatchNormAct(4, NormOptions{Strategy::kStandard})->forward(x);
  BatchNormAct(4, NormOptions{Strategy::kInplace2}.out_of_place())->forward(x);
  EXPECT_TRUE(torch::equal(x, before));
  const auto z = BatchNormAct(4, NormOptions{Strategy::kInplace2})->forward(x);
  EXPECT_EQ(z.data_ptr(), x.data_ptr());
}

TEST(BatchNormAct, PrintsItsStrategyAndActivation) {
  std::ostringstream text;
  text << BatchNormAct(4, NormOptions{}) << BatchNormAct(2, NormOptions{Strategy::kStandard}.identity());
  EXPECT_EQ(text.str(),
            "palimpsest::nn::BatchNormAct(4, strategy=inplace_2, activation=leaky_relu[0.01])"
            "palimpsest::nn::BatchNormAct(2, strategy=standard, activation=identity)");
}

TEST(BatchNormAct, IsMadeFromItsChannelsFromOptionsOrFromTheOptionsOfANetwork) {
  EXPECT_EQ(BatchNormAct(32)->weight.numel(), 32);
  EXPECT_EQ(Norm(32)->options.strategy(), Strategy::kInplace2);
  const auto options =
      BatchNormActOptions(8).strategy(Strategy::kStoreY).activation(Activation::kReLU).eps(1e-3);
  EXPECT_EQ(BatchNormAct(options)->options.eps(), 1e-3);
  const BatchNormAct of_network(8,
                                NormOptions{.strategy = Strategy::kStoreY, .activation = Activation::kReLU});
  EXPECT_EQ(of_network->options.strategy(), Strategy::kStoreY);
  EXPECT_EQ(of_network->options.activation(), Activation::kReLU);
}

TEST(BatchNormAct, AStrategyChangedLaterTakesEffectAtTheNextForward) {
  BatchNormAct norm(4);
  const auto x = torch::randn({2, 4, 3, 3});
  norm->options.strategy(Strategy::kStandard);
  const auto before = x.clone();
  norm->forward(x);
  EXPECT_TRUE(torch::equal(x, before));
}

/// Results of libtorch's layers for N = 0: empty outputs, gradients of zero, untouched statistics.
TEST(BatchNormAct, AnEmptyBatchGoesThroughAsThroughLibtorchsLayer) {
  for (const auto& name : strategy_names())
    for (const bool training : {true, false}) {
      BatchNormAct norm(4, NormOptions{parse_strategy(name)});
      norm->train(training);
      Conv2d conv(4, 6, 3);
      const auto x = torch::zeros({0, 4, 5, 5}).requires_grad_();
      EXPECT_EQ(norm->forward(x * 1).sizes(), at::IntArrayRef({0, 4, 5, 5})) << name;
      EXPECT_EQ(norm->forward_residual(x * 1, x).sizes(), at::IntArrayRef({0, 4, 5, 5})) << name;
      const auto out = norm->forward_into(x * 1, conv);
      EXPECT_EQ(out.sizes(), at::IntArrayRef({0, 6, 3, 3})) << name;
      out.sum().backward();
      EXPECT_EQ(norm->weight.grad().abs().sum().item<double>(), 0) << name;
      EXPECT_EQ(conv->weight.grad().abs().sum().item<double>(), 0) << name;
      EXPECT_EQ(x.grad().sizes(), x.sizes()) << name;
      EXPECT_EQ(norm->running_mean.abs().sum().item<double>(), 0) << name;
      EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), training ? 3 : 0) << name;
    }
}

TEST(BatchNormAct, FeedsAnyConvolutionWithTheSameResults) {
  torch::nn::Conv2d theirs(torch::nn::Conv2dOptions(4, 6, 3).padding(1));
  Conv2d ours(torch::nn::Conv2dOptions(4, 6, 3).padding(1));
  ours->weight.set_data(theirs->weight.detach().clone());
  ours->bias.set_data(theirs->bias.detach().clone());
  for (const auto& name : strategy_names()) {
    BatchNormAct norm(4, NormOptions{parse_strategy(name)});
    const auto x = leaf({2, 4, 6, 6}).detach().to(torch::kFloat32);
    const auto want = theirs->forward(norm->forward(x.clone()));
    EXPECT_TRUE(torch::equal(norm->forward_into(x.clone(), theirs), want)) << name;
    EXPECT_TRUE(torch::equal(norm->forward_into(x.clone(), ours), want)) << name;
  }
}

TEST(BatchNormAct, AConvolutionWithPaddingThatTheFusedNodeLacksIsRefusedWithTheWayOut) {
  Conv2d same(torch::nn::Conv2dOptions(4, 6, 3).padding(torch::kSame));
  const auto x = torch::randn({2, 4, 6, 6});
  EXPECT_NO_THROW(BatchNormAct(4)->forward_into(x.clone(), same));
  BatchNormAct fused(4, NormOptions{Strategy::kStoreY});
  EXPECT_NE(usage_error([&] { fused->forward_into(x.clone(), same); }).find("use strategy 'inplace_2'"),
            std::string::npos);
}

}  // namespace
}  // namespace palimpsest::nn
