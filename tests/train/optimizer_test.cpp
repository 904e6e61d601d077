#include "palimpsest/train/optimizer.h"

#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <map>

namespace palimpsest::train {
namespace {

using testing::expect_error;
using testing::TinySegmenter;

struct Pair : torch::nn::Module {
  Pair() {
    register_module("linear", linear);
    register_module("norm", norm);
  }
  torch::nn::Linear linear{torch::nn::Linear(3, 2)};
  torch::nn::BatchNorm1d norm{torch::nn::BatchNorm1d(2)};
};

/// The update of one parameter by the formula in optimizer.h.
struct ByHand {
  at::Tensor p, v;
  void step(const at::Tensor& gradient, double lr, double momentum, double decay, bool nesterov) {
    const at::Tensor g = gradient + decay * p;
    v = v.defined() ? momentum * v + g : g;
    p = p - lr * (nesterov ? g + momentum * v : v);
  }
};

TEST(Optimizer, UpdatesFollowTheFormulaWithAndWithoutNesterovAndDecayOfNormalizations) {
  for (const bool nesterov : {false, true}) {
    for (const bool decay_norm : {false, true}) {
      Pair model;
      model.to(at::kDouble);
      const auto sgd = make_optimizer(
          model,
          {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = nesterov, .decay_norm = decay_norm});
      EXPECT_EQ(sgd.optimizer->param_groups().size(), decay_norm ? 1u : 2u);
      std::map<std::string, ByHand> by_hand;
      for (const auto& p : model.named_parameters()) by_hand[p.key()].p = p.value().detach().clone();
      for (int step = 0; step < 3; ++step) {
        const double lr = 0.1 / (step + 1);
        sgd.set_learning_rate(lr);
        for (auto& p : model.named_parameters()) {
          p.value().mutable_grad() = at::randn_like(p.value());
          const bool decays = decay_norm || p.key().starts_with("linear");
          by_hand[p.key()].step(p.value().grad(), lr, 0.9, decays ? 0.01 : 0, nesterov);
        }
        sgd.optimizer->step();
      }
      for (const auto& p : model.named_parameters())
        EXPECT_LE(testing::relative_error(p.value(), by_hand[p.key()].p), testing::kReorderedF64) << p.key();
    }
  }
}

TEST(Optimizer, ABiasOfAConvolutionIsNotTakenForANormalization) {
  TinySegmenter model;
  const auto sgd = make_sgd(model, {.decay_norm = false});
  ASSERT_EQ(sgd.param_groups().size(), 2u);
  const auto& norm = sgd.param_groups()[1].params();
  ASSERT_EQ(norm.size(), 2u);
  EXPECT_TRUE(norm[0].is_same(model.bn1->weight));
  EXPECT_TRUE(norm[1].is_same(model.bn1->bias));
  EXPECT_EQ(sgd.param_groups()[0].params().size(), 3u);
}

TEST(Optimizer, AdamWFollowsTheFormulaWithFactorsOfLayersAndDecays) {
  Pair model;
  model.to(at::kDouble);
  const auto adamw = make_optimizer(model, {.kind = "adamw",
                                            .lr = 0.1,
                                            .weight_decay = 0.02,
                                            .beta1 = 0.8,
                                            .beta2 = 0.95,
                                            .eps = 1e-3,
                                            .decay_norm = false,
                                            .decay_bias = false,
                                            .lr_factors = {"linear=2", "linear.bias=0.5"}});
  struct Values {
    at::Tensor p, m, v;
  };
  std::map<std::string, Values> by_hand;
  for (const auto& p : model.named_parameters())
    by_hand[p.key()] = {p.value().detach().clone(), at::zeros_like(p.value()), at::zeros_like(p.value())};
  for (int t = 1; t <= 3; ++t) {
    const double lr = 0.1 / t;
    adamw.set_learning_rate(lr);
    for (auto& p : model.named_parameters()) {
      const at::Tensor g = p.value().mutable_grad() = at::randn_like(p.value());
      auto& [x, m, v] = by_hand[p.key()];
      const bool decays = p.key() == "linear.weight";
      const double rate = lr * (p.key() == "linear.weight" ? 2 : p.key() == "linear.bias" ? 0.5 : 1);
      if (decays) x = x - rate * 0.02 * x;
      m = 0.8 * m + 0.2 * g;
      v = 0.95 * v + 0.05 * g * g;
      x = x - rate * (m / (1 - std::pow(0.8, t))) / ((v / (1 - std::pow(0.95, t))).sqrt() + 1e-3);
    }
    adamw.optimizer->step();
  }
  for (const auto& p : model.named_parameters())
    EXPECT_LE(testing::relative_error(p.value(), by_hand[p.key()].p), testing::kReorderedF64) << p.key();
}

TEST(Optimizer, LeavesOutParametersWithoutGradient) {
  TinySegmenter model;
  model.conv1->weight.set_requires_grad(false);
  EXPECT_EQ(make_sgd(model, {}).param_groups()[0].params().size(), 4u);
  for (auto& p : model.parameters()) p.set_requires_grad(false);
  expect_error(ErrorKind::kUsage, {"all parameters", "frozen"}, [&] { make_sgd(model, {}); });
}

TEST(Optimizer, WrongFactorsOfLayersAreErrorsThatNameTheNearest) {
  TinySegmenter model;
  const auto fails = [&](const std::vector<std::string>& factors, const std::vector<std::string>& parts) {
    expect_error(ErrorKind::kUsage, parts, [&] { make_optimizer(model, {.lr_factors = factors}); });
  };
  fails({"conv22=10"}, {"lr_factors", "'conv22'", "did you mean 'conv2'", "outermost: bn1, conv1, conv2"});
  fails({"conv2"}, {"LAYER=FACTOR", "'conv2'"});
  fails({"conv2=0"}, {"FACTOR > 0", "freeze"});
  fails({"conv2=x"}, {"FACTOR > 0", "'conv2=x'"});
  fails({"=2"}, {"LAYER=FACTOR", "'=2'"});
  fails({"conv2=2", "conv2=3"}, {"conv2", "twice"});
  fails({"conv2=2", "conv2.weight=3", "conv2.bias=4"}, {"'conv2'", "no effect", "factors of their own"});
  model.conv2->weight.set_requires_grad(false);
  fails({"conv2.weight=2"}, {"'conv2.weight'", "no effect", "frozen"});
}

TEST(Optimizer, KnowsNormalizationsByKind) {
  EXPECT_TRUE(is_normalization(*torch::nn::BatchNorm2d(4)));
  EXPECT_TRUE(is_normalization(*torch::nn::GroupNorm(2, 4)));
  EXPECT_TRUE(is_normalization(*torch::nn::LayerNorm(torch::nn::LayerNormOptions({4, 4}))));
  EXPECT_FALSE(is_normalization(*torch::nn::PReLU(torch::nn::PReLUOptions().num_parameters(4))));
  EXPECT_FALSE(is_normalization(*torch::nn::Linear(4, 1)));
  EXPECT_FALSE(is_normalization(*torch::nn::Conv2d(4, 4, 1)));
}

TEST(Optimizer, AParameterThatTwoModulesShareIsUpdatedOnce) {
  struct Twice : torch::nn::Module {
    Twice() {
      register_module("a", linear);
      register_module("b", linear);
    }
    torch::nn::Linear linear{torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false))};
  } model;
  auto sgd = make_sgd(model, {.lr = 1, .momentum = 0, .weight_decay = 0});
  const double before = model.linear->weight.item<double>();
  model.linear->weight.mutable_grad() = at::ones({1, 1});
  sgd.step();
  EXPECT_FLOAT_EQ(model.linear->weight.item<float>(), static_cast<float>(before - 1));
}

TEST(Optimizer, CombinationsThatCannotWorkAreErrorsThatSayWhatToDo) {
  const TinySegmenter model;
  const auto fails = [&](OptimizerOptions options, const std::vector<std::string>& parts) {
    expect_error(ErrorKind::kUsage, parts, [&] { make_sgd(model, options); });
  };
  fails({.momentum = 0, .nesterov = true}, {"nesterov needs momentum > 0", "set momentum"});
  fails({.lr = -1}, {"lr", "-1"});
  fails({.momentum = 1}, {"momentum", "[0, 1)", "1"});
  fails({.kind = "adam"}, {"unknown optimizer 'adam'", "did you mean 'adamw'"});
  fails({.kind = "adamw", .nesterov = true}, {"nesterov needs kind sgd", "adamw"});
  fails({.kind = "adamw"}, {"make_sgd needs kind sgd"});
  fails({.beta2 = 1}, {"beta2", "[0, 1)", "1"});
  fails({.eps = 0}, {"eps", "above 0", "0"});
  fails({.weight_decay = -0.5}, {"weight_decay", "-0.5"});
  expect_error(ErrorKind::kUsage, {"no parameters"}, [] { make_sgd(*torch::nn::Dropout(), {}); });
}

}  // namespace
}  // namespace palimpsest::train
