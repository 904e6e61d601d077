#include "palimpsest/nn/dense_transition.h"

#include "tests/nn/dense_block_support.h"

namespace palimpsest::nn {
namespace {

TEST(DenseTransition, EveryFormIsNormalizationActivationConvolutionAndMean) {
  at::Tensor want;
  for (const auto form : kDenseForms) {
    DenseTransition transition(DenseTransitionOptions(6).dense_strategy(form));
    transition->to(torch::kFloat64);
    randomize(*transition);
    const auto x = leaf({2, 6, 5, 7});
    const auto out = transition->forward(x);
    EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 3, 2, 3})) << "half of the channels, odd pixels left out";
    const auto gradient = torch::autograd::grad({out.sin().sum()}, {x})[0];
    if (!want.defined()) want = gradient;
    EXPECT_LE(relative_error(gradient, want), testing::kReorderedF64) << to_string(form);
  }
}

TEST(DenseTransition, ANormalizationSwitchedToStandardIsComputedByLibtorchsLayer) {
  for (const auto form : kDenseForms) {
    DenseTransition transition(DenseTransitionOptions(6).dense_strategy(form));
    transition->to(torch::kFloat64);
    randomize(*transition);
    const auto x = leaf({2, 6, 5, 7});
    const auto gradient = [&] { return torch::autograd::grad({transition->forward(x).sin().sum()}, {x})[0]; };
    const at::Tensor want = gradient();
    auto norm = std::dynamic_pointer_cast<BatchNormActImpl>(transition->named_children()["norm"]);
    ASSERT_TRUE(norm);
    norm->options.strategy(Strategy::kStandard);
    EXPECT_LE(relative_error(gradient(), want), testing::kReorderedF64) << to_string(form);
  }
}

TEST(DenseTransition, TakesAnEmptyBatch) {
  for (const auto form : kDenseForms) {
    DenseTransition transition(DenseTransitionOptions(6).out_channels(5).dense_strategy(form));
    EXPECT_EQ(transition->forward(torch::zeros({0, 6, 4, 4})).sizes(), at::IntArrayRef({0, 5, 2, 2}));
  }
}

}  // namespace
}  // namespace palimpsest::nn
