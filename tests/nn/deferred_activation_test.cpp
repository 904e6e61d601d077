#include "palimpsest/nn/deferred_activation.h"

#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/conv2d.h"
#include "tests/nn/support.h"

namespace palimpsest::nn {
namespace {

TEST(DeferredActivation, BlocksDeferWhatTheirStrategyCannotInvert) {
  const auto defers = [](Strategy strategy, Activation activation) {
    return defers_activation({.strategy = strategy, .activation = activation});
  };
  EXPECT_FALSE(defers(Strategy::kStandard, Activation::kReLU));
  EXPECT_FALSE(defers(Strategy::kInplace2, Activation::kLeakyReLU));
  EXPECT_FALSE(defers(Strategy::kStoreY, Activation::kLeakyReLU));
  EXPECT_TRUE(defers(Strategy::kStoreY, Activation::kReLU));
  EXPECT_TRUE(defers(Strategy::kStoreY, Activation::kGELU));
  EXPECT_FALSE(defers(Strategy::kInplaceBit, Activation::kGELU));
}

TEST(DeferredActivation, ReadersApplyItAndSaveTheirInputAlone) {
  Conv2d conv(torch::nn::Conv2dOptions(4, 6, 3).padding(1));
  conv->to(torch::kFloat64);
  const auto t = leaf({2, 4, 5, 5});
  const DeferredActivation relu{true, Activation::kReLU, 0}, none;
  EXPECT_TRUE(torch::equal(relu.apply(t), torch::relu(t)));
  EXPECT_TRUE(none.apply(t).is_same(t));
  EXPECT_TRUE(torch::equal(none.forward_into(t, *conv), conv->forward(t)));
  const auto got = torch::autograd::grad({relu.forward_into(t, *conv).sin().sum()}, {t, conv->weight});
  const auto want = torch::autograd::grad({conv->forward(torch::relu(t)).sin().sum()}, {t, conv->weight});
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_LE(relative_error(got[i], want[i]), kSameMaths);
}

/// Two blocks' ends: the first leaves its activation to the second, which reads it as its shortcut.
TEST(DeferredActivation, TheEndOfAResidualBlockIsTheSumOfTheLayers) {
  for (const auto activation : {Activation::kReLU, Activation::kGELU, Activation::kLeakyReLU})
    for (const auto& name : strategy_names()) {
      const NormOptions norm{parse_strategy(name), activation, 0.1};
      if (!fits(norm.strategy, activation)) continue;
      BatchNormAct end(3, norm);
      end->to(torch::kFloat64);
      const auto deferred = DeferredActivation::of_blocks(norm);
      auto h = leaf({2, 3, 4, 4}, 1), shortcut = leaf({2, 3, 4, 4}, 2);
      const auto sum = end->forward_residual(h * 1, shortcut, deferred);
      const auto got = torch::autograd::grad({deferred.apply(sum).sin().sum()}, {h, shortcut});
      const auto bn = torch::batch_norm(h, {}, {}, {}, {}, true, 0.1, 1e-5, false);
      const auto want_out = activate(bn + deferred.apply(shortcut), activation, 0.1);
      const auto want = torch::autograd::grad({want_out.sin().sum()}, {h, shortcut});
      EXPECT_LE(relative_error(deferred.apply(sum), want_out), kSameMaths) << name;
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_LE(relative_error(got[i], want[i]), kSameMaths) << name << ", gradient " << i;
    }
}

}  // namespace
}  // namespace palimpsest::nn
