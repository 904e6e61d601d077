#include "palimpsest/train/frozen.h"

#include "palimpsest/train/optimizer.h"
#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

namespace palimpsest::train {
namespace {

using namespace testing;

TEST(Frozen, LayersHaveNoGradientAndKeepTheirStatisticsUntilItEnds) {
  const auto model = make_tiny(1);
  {
    const Frozen frozen(*model, {.layers = {"conv1", "bn1"}});
    EXPECT_FALSE(model->conv1->weight.requires_grad());
    EXPECT_FALSE(model->bn1->weight.requires_grad());
    EXPECT_TRUE(model->conv2->weight.requires_grad());
    EXPECT_FALSE(model->bn1->is_training());
    EXPECT_TRUE(model->dropout->is_training());
    const at::Tensor mean = model->bn1->running_mean.clone();
    model->forward(at::randn({2, 3, 4, 4})).sum().backward();
    EXPECT_TRUE(model->bn1->running_mean.equal(mean));
    EXPECT_FALSE(model->conv1->weight.grad().defined());
    EXPECT_EQ(make_sgd(*model, {}).param_groups()[0].params().size(), 2u) << "no state for frozen parameters";
  }
  EXPECT_TRUE(model->conv1->weight.requires_grad());
  EXPECT_TRUE(model->bn1->is_training());
}

TEST(Frozen, ASingleParameterDoesNotFreezeStatistics) {
  const auto model = make_tiny(1);
  const Frozen frozen(*model, {.layers = {"bn1.weight"}});
  EXPECT_FALSE(model->bn1->weight.requires_grad());
  EXPECT_TRUE(model->bn1->bias.requires_grad());
  EXPECT_TRUE(model->bn1->is_training());
}

TEST(Frozen, NormalizationsKeepStatisticsAndTrainTheirWeights) {
  const auto model = make_tiny(1);
  const Frozen frozen(*model, {.norm = true});
  EXPECT_FALSE(model->bn1->is_training());
  EXPECT_TRUE(model->bn1->weight.requires_grad());
  EXPECT_TRUE(model->is_training());
}

TEST(Frozen, WhatTheUserHasFrozenStaysSo) {
  const auto model = make_tiny(1);
  model->conv1->weight.set_requires_grad(false);
  model->bn1->eval();
  {
    const Frozen frozen(*model, {.layers = {"conv1"}, .norm = true});
  }
  EXPECT_FALSE(model->conv1->weight.requires_grad());
  EXPECT_FALSE(model->bn1->is_training());
}

TEST(Frozen, AnErrorNamesTheNearestLayerAndFreezesNothing) {
  const auto model = make_tiny(1);
  const auto fails = [&](const FrozenOptions& options, const std::vector<std::string>& parts) {
    expect_error(ErrorKind::kUsage, parts, [&] { Frozen(*model, options); });
    for (const auto& p : model->parameters()) EXPECT_TRUE(p.requires_grad());
  };
  fails({.layers = {"conv1", "cnov2"}}, {"freeze", "'cnov2'", "did you mean 'conv2'", "bn1, conv1, conv2"});
  fails({.layers = {"conv"}}, {"'conv'", "no layer"});  // a part of a name is none
  fails({.layers = {""}}, {"''", "no layer"});
  fails({.layers = {"conv1", "conv1.weight"}}, {"'conv1.weight'", "freezes already"});
  torch::nn::Sequential plain(torch::nn::Conv2d(3, 3, 1));
  expect_error(ErrorKind::kUsage, {"freeze_norm", "running statistics"},
               [&] { Frozen(*plain, {.norm = true}); });
}

}  // namespace
}  // namespace palimpsest::train
