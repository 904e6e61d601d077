#include "palimpsest/nn/fold.h"

#include "palimpsest/nn/inplace_abn.h"
#include "tests/nn/support.h"

namespace palimpsest::nn {
namespace {

/// Parameters of both signs and running statistics that are not those of a fresh layer, f64, eval mode.
template <class Module>
Module randomized(Module module) {
  const torch::NoGradGuard no_grad;
  module->to(torch::kFloat64);
  torch::manual_seed(7);
  for (auto& parameter : module->parameters()) parameter.normal_();
  for (auto& buffer : module->named_buffers())
    if (buffer.key() == "running_mean") {
      buffer.value().normal_();
    } else if (buffer.key() == "running_var") {
      buffer.value().uniform_(0.2, 3);
    }
  module->eval();
  return module;
}

torch::nn::Conv2d convolution(int64_t in, int64_t out, bool bias, int64_t groups = 1) {
  return randomized(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).stride(2).padding(1).groups(groups).bias(bias)));
}

class Fold : public ::testing::TestWithParam<std::tuple<Strategy, Activation, bool, int64_t>> {};

TEST_P(Fold, MovesTheNormalizationIntoTheConvolution) {
  const auto [strategy, activation, bias, groups] = GetParam();
  const torch::NoGradGuard no_grad;
  auto conv = convolution(4, 6, bias, groups);
  auto norm = randomized(BatchNormAct(6, NormOptions{strategy, activation, 0.3}));
  const auto x = leaf({2, 4, 9, 7}).detach();
  const auto want = norm->forward(conv->forward(x));

  fold_batch_norm(*conv, *norm);
  EXPECT_LE(relative_error(norm->forward(conv->forward(x)), want), kSameMaths);
  EXPECT_EQ(keys(*conv), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_EQ(conv->named_parameters()["bias"].data_ptr(), conv->bias.data_ptr());
}

INSTANTIATE_TEST_SUITE_P(Layers, Fold,
                         ::testing::Combine(::testing::Values(Strategy::kStandard, Strategy::kInplace2),
                                            ::testing::Values(Activation::kLeakyReLU, Activation::kELU,
                                                              Activation::kIdentity),
                                            ::testing::Bool(), ::testing::Values(1, 2)));

TEST(FoldedBatchNormAct, IsItsActivationToTheBit) {
  const torch::NoGradGuard no_grad;
  for (const auto strategy : {Strategy::kStandard, Strategy::kInplace2}) {
    auto norm = randomized(BatchNormAct(3, NormOptions{strategy, Activation::kLeakyReLU, 0.1}));
    keep_activation_only(*norm);
    const auto x = torch::randn({2, 3, 5, 5}, torch::kFloat64);
    EXPECT_TRUE(torch::equal(norm->forward(x.clone()), torch::leaky_relu(x, 0.1))) << to_string(strategy);
    for (const auto& key : keys(*norm)) EXPECT_TRUE(key != "weight" && key != "bias") << key;
  }
}

TEST(FoldedBatchNormAct, WithoutAnActivationIsItsInput) {
  const torch::NoGradGuard no_grad;
  for (const bool in_place : {true, false}) {
    NormOptions options = NormOptions{}.identity();
    options.in_place = in_place;
    auto norm = randomized(BatchNormAct(3, options));
    keep_activation_only(*norm);
    const auto x = torch::randn({2, 3, 5, 5}, torch::kFloat64);
    const auto y = norm->forward(x);
    EXPECT_TRUE(torch::equal(y, x));
    EXPECT_EQ(y.data_ptr() == x.data_ptr(), in_place) << "another reader of x may write over it";
  }
}

TEST(FoldedBatchNormAct, BeforeAnAdditionIsTheAddition) {
  const torch::NoGradGuard no_grad;
  for (const auto strategy : {Strategy::kStandard, Strategy::kInplace2}) {
    for (const bool relu_residual : {false, true}) {
      auto norm = randomized(BatchNormAct(3, NormOptions{strategy, Activation::kELU, 0.3}));
      keep_activation_only(*norm);
      const auto x = torch::randn({2, 3, 5, 5}, torch::kFloat64), residual = torch::randn_like(x);
      const auto want = torch::elu(x + (relu_residual ? torch::relu(residual) : residual), 0.3);
      const auto kept = residual.clone();
      const auto got = norm->forward_residual(x.clone(), residual, {relu_residual, Activation::kReLU, 0});
      EXPECT_TRUE(torch::equal(got, want)) << to_string(strategy) << ", relu " << relu_residual;
      EXPECT_TRUE(torch::equal(residual, kept));
    }
  }
}

TEST(Fold, TakesALayerWithoutWeightAndBias) {
  const torch::NoGradGuard no_grad;
  auto conv = convolution(2, 3, false);
  auto norm = randomized(InPlaceABN(InPlaceABNOptions(3).affine(false).eps(0.5)));
  const auto x = leaf({2, 2, 6, 6}).detach();
  const auto want = norm->forward(conv->forward(x));
  fold_batch_norm(*conv, *norm);
  EXPECT_LE(relative_error(norm->forward(conv->forward(x)), want), kSameMaths);
}

TEST(Fold, RoundsOnceInSinglePrecision) {
  const torch::NoGradGuard no_grad;
  auto conv = convolution(8, 8, false);
  auto norm = randomized(BatchNormAct(8, NormOptions{}));
  conv->to(torch::kFloat32);
  norm->to(torch::kFloat32);
  const auto affine = inference_affine(*norm);
  const auto want = conv->weight.to(torch::kFloat64) * affine.scale.view({8, 1, 1, 1});
  fold_batch_norm(*conv, *norm);
  EXPECT_EQ(conv->weight.scalar_type(), torch::kFloat32);
  EXPECT_TRUE(torch::equal(conv->weight, want.to(torch::kFloat32)));
  EXPECT_TRUE(torch::equal(conv->bias, affine.shift.to(torch::kFloat32)));
}

TEST(Fold, KeepsTheLayoutOfTheWeight) {
  const torch::NoGradGuard no_grad;
  auto conv = convolution(4, 4, false);
  conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  const auto strides = conv->weight.strides().vec();
  const auto* before = conv->weight.data_ptr();
  fold_batch_norm(*conv, *randomized(BatchNormAct(4, NormOptions{})));
  EXPECT_EQ(conv->weight.strides().vec(), strides);
  EXPECT_EQ(conv->weight.data_ptr(), before);
}

TEST(Fold, IsRefusedBeforeAnythingChangesWhereItCannotBeExact) {
  auto conv = convolution(2, 4, false);
  const auto before = conv->weight.detach().clone();
  auto training = randomized(BatchNormAct(4, NormOptions{}));
  training->train();
  EXPECT_NE(usage_error([&] { fold_batch_norm(*conv, *training); }).find("call eval()"), std::string::npos);
  auto untracked = InPlaceABN(InPlaceABNOptions(4).track_running_stats(false));
  untracked->eval();
  EXPECT_NE(usage_error([&] { fold_batch_norm(*conv, *untracked); }).find("running statistics"),
            std::string::npos);
  auto other = randomized(BatchNormAct(3, NormOptions{}));
  EXPECT_NE(usage_error([&] { fold_batch_norm(*conv, *other); }).find("3 channels and 4 output channels"),
            std::string::npos);
  EXPECT_TRUE(torch::equal(conv->weight, before));
  EXPECT_FALSE(conv->bias.defined());
  EXPECT_TRUE(other->weight.defined());
}

}  // namespace
}  // namespace palimpsest::nn
