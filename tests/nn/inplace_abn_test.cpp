#include "palimpsest/nn/inplace_abn.h"

#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "tests/nn/support.h"

#include <sstream>

namespace palimpsest::nn {
namespace {

namespace F = torch::nn::functional;

// Parameters that are not those of a fresh layer: some negative weights, biases of either sign.
template <class Module>
void set_parameters(Module& module) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(7);
  module.to(torch::kFloat64);
  module.weight.copy_(torch::randn_like(module.weight).add_(0.3));
  module.bias.copy_(torch::randn_like(module.bias));
}

TEST(InPlaceABN, ItsKeysShapesAndInitialValuesAreThoseOfBatchNorm2d) {
  InPlaceABN ours(5);
  torch::nn::BatchNorm2d theirs(5);
  const auto got = state_dict(*ours), want = state_dict(*theirs);
  ASSERT_EQ(keys(*ours), keys(*theirs));
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].second.scalar_type(), want[i].second.scalar_type()) << want[i].first;
    EXPECT_TRUE(torch::equal(got[i].second, want[i].second)) << want[i].first;
    EXPECT_EQ(got[i].second.requires_grad(), want[i].second.requires_grad()) << want[i].first;
  }
}

class InPlaceABNRank : public ::testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(InPlaceABNRank, OutputAndGradientsEqualBatchNormAndActivation) {
  for (const bool in_place : {true, false}) {
    InPlaceABN layer(InPlaceABNOptions(3).slope(0.1).in_place(in_place));
    set_parameters(*layer);
    auto x = leaf(GetParam()), x2 = leaf(GetParam());
    auto w = layer->weight.detach().clone().requires_grad_(),
         b = layer->bias.detach().clone().requires_grad_();

    const auto want = torch::leaky_relu(
        F::batch_norm(x2 * 1, {}, {}, F::BatchNormFuncOptions().weight(w).bias(b).training(true)), 0.1);
    const auto got = layer->forward(x * 1);
    EXPECT_LE(relative_error(got, want), kSameMaths);

    const auto dz = torch::cos(want.detach() * 3);
    want.backward(dz);
    got.backward(dz);
    EXPECT_LE(relative_error(x.grad(), x2.grad()), kSameMaths);
    EXPECT_LE(relative_error(layer->weight.grad(), w.grad()), kSameMaths);
    EXPECT_LE(relative_error(layer->bias.grad(), b.grad()), kSameMaths);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks2To5, InPlaceABNRank,
                         ::testing::Values(std::vector<int64_t>{6, 3}, std::vector<int64_t>{2, 3, 7},
                                           std::vector<int64_t>{2, 3, 4, 5},
                                           std::vector<int64_t>{2, 3, 2, 3, 4}));

TEST(InPlaceABN, OtherRanksAndOtherChannelsAreRefused) {
  InPlaceABN layer(3);
  EXPECT_THROW(layer->forward(torch::randn({3})), c10::Error);
  EXPECT_THROW(layer->forward(torch::randn({2, 3, 2, 2, 2, 2})), c10::Error);
  EXPECT_THROW(layer->forward(torch::randn({2, 4, 5, 5})), c10::Error);
}

TEST(InPlaceABN, WritesOverItsInputUnlessToldOtherwise) {
  InPlaceABN layer(3);
  const auto x = torch::randn({2, 3, 4, 4});
  const auto before = x.clone();
  const auto fresh = InPlaceABN(InPlaceABNOptions(3).in_place(false))->forward(x);
  EXPECT_TRUE(torch::equal(x, before));
  const auto z = layer->forward(x);
  EXPECT_EQ(z.data_ptr(), x.data_ptr());
  EXPECT_TRUE(torch::equal(z, fresh));
}

TEST(InPlaceABN, ALeafThatRequiresGradIsRefusedAndOutOfPlaceIsTheWayOut) {
  auto x = leaf({2, 3, 4, 4});
  InPlaceABN layer(3);
  layer->to(torch::kFloat64);
  EXPECT_THROW(layer->forward(x), c10::Error);
  layer->options.in_place(false);
  EXPECT_NO_THROW(layer->forward(x).sum().backward());
}

TEST(InPlaceABN, UnderNoGradTheInputIsOverwrittenAsDocumented) {
  torch::NoGradGuard no_grad;
  InPlaceABN layer(3);
  layer->eval();
  auto x = torch::full({1, 3, 2, 2}, -1.0);
  layer->forward(x);
  EXPECT_NEAR(x.max().item<double>(), -0.01, testing::kRoundingF32);
}

// Several batches of different size through `ours` and libtorch's layer: running statistics agree after each.
void expect_same_running_statistics(const std::optional<double>& momentum) {
  InPlaceABN ours(InPlaceABNOptions(4).momentum(momentum));
  torch::nn::BatchNorm2d theirs(torch::nn::BatchNorm2dOptions(4).momentum(momentum));
  ours->to(torch::kFloat64);
  theirs->to(torch::kFloat64);
  for (int64_t batch = 1; batch <= 4; ++batch) {
    const auto x = leaf({batch + 1, 4, 3, 3}, batch).detach();
    theirs->forward(x);
    ours->forward(x.clone());
    EXPECT_LE(relative_error(ours->running_mean, theirs->running_mean), kSameMaths) << "batch " << batch;
    EXPECT_LE(relative_error(ours->running_var, theirs->running_var), kSameMaths) << "batch " << batch;
    EXPECT_EQ(ours->num_batches_tracked.item<int64_t>(), batch);
  }
}

TEST(InPlaceABN, RunningStatisticsFollowLibtorchs) {
  expect_same_running_statistics(0.1);
  expect_same_running_statistics(0.6);
}

TEST(InPlaceABN, MomentumNoneIsTheCumulativeAverageOfLibtorch) {
  expect_same_running_statistics(std::nullopt);
}

TEST(InPlaceABN, EvalUsesTheRunningStatisticsAndTrainTheBatchs) {
  InPlaceABN ours(InPlaceABNOptions(4).activation(Activation::kIdentity).in_place(false));
  torch::nn::BatchNorm2d theirs(4);
  ours->to(torch::kFloat64);
  theirs->to(torch::kFloat64);
  for (const bool training : {true, false, true, false}) {
    ours->train(training);
    theirs->train(training);
    const auto x = leaf({3, 4, 5, 5}, training ? 2 : 3).detach();
    EXPECT_LE(relative_error(ours->forward(x), theirs->forward(x)), kSameMaths);
    EXPECT_LE(relative_error(ours->running_var, theirs->running_var), kSameMaths);
    EXPECT_EQ(ours->num_batches_tracked.item<int64_t>(), theirs->num_batches_tracked.item<int64_t>());
  }
}

TEST(InPlaceABN, EvalHasGradientsOfFrozenStatistics) {
  InPlaceABN layer(InPlaceABNOptions(3).slope(0.5));
  set_parameters(*layer);
  layer->forward(leaf({4, 3, 3, 3}, 5).detach());
  layer->eval();
  auto x = leaf({2, 3, 4, 4}), x2 = leaf({2, 3, 4, 4});
  layer->forward(x * 1).square().sum().backward();
  const auto y =
      F::batch_norm(x2, layer->running_mean, layer->running_var,
                    F::BatchNormFuncOptions().weight(layer->weight).bias(layer->bias).training(false));
  torch::leaky_relu(y, 0.5).square().sum().backward();
  EXPECT_LE(relative_error(x.grad(), x2.grad()), kSameMaths);
}

TEST(InPlaceABN, WithoutRunningStatisticsEvalNormalizesWithTheBatch) {
  InPlaceABN layer(InPlaceABNOptions(3).track_running_stats(false).in_place(false));
  EXPECT_EQ(keys(*layer), (std::vector<std::string>{"weight", "bias"}));
  const auto x = torch::randn({2, 3, 4, 4});
  const auto trained = layer->forward(x);
  layer->eval();
  EXPECT_TRUE(torch::equal(layer->forward(x), trained));
}

TEST(InPlaceABN, WithoutAffineTheWeightIsOneAndTheBiasZero) {
  InPlaceABN plain(InPlaceABNOptions(3).affine(false)), fresh(3);
  EXPECT_EQ(keys(*plain), (std::vector<std::string>{"running_mean", "running_var", "num_batches_tracked"}));
  const auto x = torch::randn({2, 3, 4, 4});
  EXPECT_TRUE(torch::equal(plain->forward(x.clone()), fresh->forward(x.clone())));
}

TEST(InPlaceABN, AOneValuePerChannelBatchIsRefusedInTrainingOnly) {
  InPlaceABN layer(3);
  EXPECT_THROW(layer->forward(torch::randn({1, 3, 1, 1})), c10::Error);
  layer->eval();
  EXPECT_NO_THROW(layer->forward(torch::randn({1, 3, 1, 1})));
}

TEST(InPlaceABN, OptionsThatMayChangeLaterTakeEffectAtTheNextForward) {
  InPlaceABN layer(InPlaceABNOptions(3).in_place(false));
  const auto x = torch::randn({2, 3, 4, 4});
  const auto leaky = layer->forward(x);
  layer->options.activation(Activation::kIdentity).eps(0.1).momentum(1.0);
  const auto wanted = F::batch_norm(x, {}, {}, F::BatchNormFuncOptions().training(true).eps(0.1));
  EXPECT_TRUE(torch::allclose(layer->forward(x), wanted, testing::kReorderedF32, testing::kRoundingF32));
  EXPECT_FALSE(torch::allclose(leaky, wanted, testing::kReorderedF32, testing::kRoundingF32));
  EXPECT_TRUE(
      torch::allclose(layer->running_mean, x.mean({0, 2, 3}), testing::kReorderedF32, testing::kRoundingF32));
}

TEST(InPlaceABN, ResetParametersForgets) {
  InPlaceABN layer(3);
  layer->forward(torch::randn({2, 3, 4, 4}));
  EXPECT_NE(layer->running_mean.abs().sum().item<double>(), 0);
  layer->reset_parameters();
  EXPECT_EQ(layer->num_batches_tracked.item<int64_t>(), 0);
  EXPECT_EQ(layer->running_mean.abs().sum().item<double>(), 0);
}

TEST(InPlaceABN, PrintsItsOptions) {
  std::ostringstream text;
  text << InPlaceABN(
      InPlaceABNOptions(8).momentum(std::nullopt).activation(Activation::kELU).activation_param(2));
  EXPECT_EQ(text.str(),
            "palimpsest::nn::InPlaceABN(8, eps=1e-05, momentum=none, affine=true, track_running_stats=true, "
            "activation=elu[2], in_place=true)");
}

TEST(InPlaceABN, AnActivationThatItCannotInvertIsRefusedWithTheModuleThatTakesIt) {
  const auto message = usage_error([] { InPlaceABN(InPlaceABNOptions(3).activation(Activation::kReLU)); });
  EXPECT_NE(message.find("must be invertible, got 'relu'; take nn::BatchNormAct"), std::string::npos)
      << message;
  EXPECT_NE(message.find("nn::Strategy::kStoreY"), std::string::npos) << message;
  EXPECT_NE(usage_error([] {
              InPlaceABN(InPlaceABNOptions(3).strategy(Strategy::kStandard));
            }).find("must be 'inplace_2', got 'standard'"),
            std::string::npos);
}

TEST(InPlaceABN, ASlopeThatCannotBeInvertedIsRefusedAtConstruction) {
  usage_error([] { InPlaceABN(InPlaceABNOptions(3).slope(-0.1)); });
}

TEST(InPlaceABN, SlopeZeroIsReLUAndSavesThePreActivationOverTheInput) {
  std::vector<at::Tensor> results[2];
  for (const bool relu : {false, true}) {
    torch::manual_seed(3);
    const at::Tensor x = torch::randn({4, 6, 5, 5}).set_requires_grad(true);
    at::Tensor h = x * 2, z;
    const void* const memory = h.data_ptr();
    int64_t kept = 0;
    if (relu) {
      BatchNormAct layer(BatchNormActOptions(6).strategy(Strategy::kStoreY).activation(Activation::kReLU));
      const memory::Meter meter;
      z = layer->forward(std::move(h));
      kept = memory::memory_stats().current_bytes - meter.base_bytes();
    } else {
      InPlaceABN layer(InPlaceABNOptions(6).slope(0));
      const memory::Meter meter;
      z = layer->forward(std::move(h));
      kept = memory::memory_stats().current_bytes - meter.base_bytes();
      EXPECT_NE(z.data_ptr(), memory) << "y lies there";
    }
    const at::Tensor dz = torch::randn(z.sizes());
    results[relu] = {z.detach(), torch::autograd::grad({z}, {x}, {dz})[0], torch::full({1}, kept)};
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(results[0][i].equal(results[1][i])) << "result " << i;
}

TEST(BatchNormAct, CountsBatchesAlsoAsAModuleOfBFloat16) {
  BatchNormAct layer(BatchNormActOptions(3));
  layer->num_batches_tracked.fill_(1000);
  layer->to(torch::kBFloat16);
  layer->num_batches_tracked.set_data(torch::full({}, 256).to(torch::kBFloat16));
  layer->forward(torch::randn({4, 3, 2, 2}).to(torch::kBFloat16));
  layer->forward(torch::randn({4, 3, 2, 2}).to(torch::kBFloat16));
  EXPECT_EQ(layer->num_batches_tracked.item<int64_t>(), 258);
}

}  // namespace
}  // namespace palimpsest::nn
