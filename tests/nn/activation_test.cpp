#include "palimpsest/nn/activation.h"

#include "tests/nn/support.h"

#include <cmath>

namespace palimpsest::nn {
namespace {

TEST(Activation, EveryNameIsParsedBack) {
  for (const auto& name : activation_names()) EXPECT_EQ(to_string(parse_activation(name)), name);
}

TEST(Activation, AnUnknownNameGetsTheNearestOne) {
  std::string known;
  for (const auto& name : activation_names()) known += (known.empty() ? "" : ", ") + name;
  EXPECT_EQ(usage_error([] { parse_activation("leaky-relu"); }),
            "unknown activation 'leaky-relu'; did you mean 'leaky_relu'? (known: " + known + ")");
}

TEST(Activation, AParameterThatCannotBeInvertedIsRefusedWithItsValue) {
  const auto leaky = usage_error([] { check_activation_param(Activation::kLeakyReLU, -0.5); });
  EXPECT_NE(leaky.find("slope in [0, 1], got -0.5"), std::string::npos) << leaky;
  usage_error([] { check_activation_param(Activation::kLeakyReLU, 1.5); });
  usage_error([] { check_activation_param(Activation::kLeakyReLU, std::nan("")); });
  usage_error([] { check_activation_param(Activation::kELU, -1); });
  usage_error([] { check_activation_param(Activation::kELU, INFINITY); });
  EXPECT_NO_THROW(check_activation_param(Activation::kLeakyReLU, 1));
  EXPECT_NO_THROW(check_activation_param(Activation::kLeakyReLU, 0));  // ReLU
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
