#include "palimpsest/nn/activation.h"
#include "palimpsest/nn/inplace_abn.h"
#include "palimpsest/nn/norm.h"
#include "palimpsest/nn/strategy.h"
#include "tests/nn/support.h"

#include <cmath>

namespace palimpsest::nn {
namespace {

TEST(Strategy, EveryNameIsParsedAndTheAliasMeansTheFusedLayer) {
  for (const auto& name : strategy_names()) EXPECT_NO_THROW(parse_strategy(name)) << name;
  EXPECT_EQ(parse_strategy("standard"), Strategy::kStandard);
  EXPECT_EQ(parse_strategy("inplace"), Strategy::kInplace2);
  for (const auto& name : strategy_names()) {
    EXPECT_EQ(to_string(parse_strategy(name)), name == "inplace" ? "inplace_2" : name);
  }
}

TEST(Strategy, APairThatCannotBeExactIsRefusedWithTheStrategiesThatCan) {
  for (const auto activation :
       {Activation::kReLU, Activation::kGELU, Activation::kSiLU, Activation::kHardSwish}) {
    const bool branches = activation == Activation::kGELU || activation == Activation::kSiLU;
    for (const auto strategy : {Strategy::kInplace1, Strategy::kInplace2, Strategy::kInplace1Bit}) {
      if (branches && strategy == Strategy::kInplace1Bit) continue;
      const auto error = usage_error([&] { Norm(4, NormOptions{strategy, activation}); });
      EXPECT_NE(error.find("'" + to_string(activation) + "' cannot be inverted"), std::string::npos) << error;
      EXPECT_NE(error.find(branches ? "standard, checkpoint, checkpoint_normalized, inplace_1bit, store_y"
                                    : "standard, checkpoint, checkpoint_normalized, store_y"),
                std::string::npos)
          << error;
    }
    for (const auto strategy :
         {Strategy::kStandard, Strategy::kCheckpoint, Strategy::kCheckpointNormalized, Strategy::kStoreY})
      EXPECT_NO_THROW(Norm(4, NormOptions{strategy, activation}));
    if (branches) {
      EXPECT_NO_THROW(Norm(4, NormOptions{Strategy::kInplace1Bit, activation}));
    }
    usage_error([&] { InPlaceABN(InPlaceABNOptions(4).activation(activation)); });
  }
}

TEST(Strategy, AnUnknownNameGetsTheNearestOne) {
  EXPECT_EQ(usage_error([] { parse_strategy("inplce_2"); }),
            "unknown strategy 'inplce_2'; did you mean 'inplace_2'? (known: standard, checkpoint, "
            "checkpoint_normalized, inplace_1, inplace_2, inplace, inplace_1bit, store_y)");
}

TEST(Activation, EveryNameIsParsedBack) {
  for (const auto& name : activation_names()) EXPECT_EQ(to_string(parse_activation(name)), name);
}

TEST(Activation, AnUnknownNameGetsTheNearestOne) {
  EXPECT_EQ(usage_error([] { parse_activation("leaky-relu"); }),
            "unknown activation 'leaky-relu'; did you mean 'leaky_relu'? (known: leaky_relu, elu, identity, "
            "sigmoid, tanh, softplus, relu, gelu, gelu_tanh, silu, hardswish)");
}

TEST(Activation, AParameterThatCannotBeInvertedIsRefusedWithItsValue) {
  const auto leaky = usage_error([] { check_activation_param(Activation::kLeakyReLU, 0); });
  EXPECT_NE(leaky.find("slope in (0, 1], got 0"), std::string::npos) << leaky;
  usage_error([] { check_activation_param(Activation::kLeakyReLU, 1.5); });
  usage_error([] { check_activation_param(Activation::kLeakyReLU, std::nan("")); });
  usage_error([] { check_activation_param(Activation::kELU, -1); });
  usage_error([] { check_activation_param(Activation::kELU, INFINITY); });
  EXPECT_NO_THROW(check_activation_param(Activation::kLeakyReLU, 1));
  EXPECT_NO_THROW(check_activation_param(Activation::kELU, 2));
  EXPECT_NO_THROW(check_activation_param(Activation::kIdentity, -3));
}

TEST(Activation, InPlaceIsTheFormulaAndWritesOverItsInput) {
  const auto x = torch::linspace(-3, 3, 7, torch::kFloat64);
  const auto check = [&](Activation activation, double param, const at::Tensor& want) {
    auto y = x.clone();
    const auto* before = y.data_ptr();
    const auto z = activate_(y, activation, param);
    EXPECT_EQ(z.data_ptr(), before);
    EXPECT_LE(relative_error(z, want), kSameMaths);
  };
  check(Activation::kLeakyReLU, 0.2, torch::where(x >= 0, x, 0.2 * x));
  check(Activation::kELU, 1.5, torch::where(x >= 0, x, 1.5 * (x.exp() - 1)));
  check(Activation::kIdentity, 7, x);
}

}  // namespace
}  // namespace palimpsest::nn
