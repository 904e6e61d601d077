#include "palimpsest/amp/gradient_dtype.h"

#include "tests/amp/support.h"
#include "tests/support/expect_error.h"
#include "tests/support/relative_error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace palimpsest::amp {
namespace {

using palimpsest::testing::dtype_of;
using palimpsest::testing::expect_error;
using palimpsest::testing::kAccumulatedFloor;
using palimpsest::testing::tolerances;
using testing::gradients_of;
using testing::loss_of;
using testing::UsersNet;

TEST(AccumulateGradientsIn, GradientsMayAddUpInSixteenBits) {
  UsersNet net;
  const auto parameters = net->parameters();
  loss_of(net, at::kBFloat16).backward();
  const auto want = gradients_of(net);
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat}) {
    accumulate_gradients_in(type, parameters);
    for (int pass = 0; pass < 2; ++pass) loss_of(net, at::kBFloat16).backward();
    for (const auto& p : parameters) EXPECT_EQ(p.grad().scalar_type(), type);
    const auto got = gradients_of(net);
    const double limit = tolerances(dtype_of(type)).accumulated;
    for (size_t i = 0; i < got.size(); ++i) {
      const auto both = 2 * want[i];
      EXPECT_LE((got[i].to(at::kFloat) - both).norm().item<double>(),
                limit * both.norm().item<double>() + kAccumulatedFloor);
    }
  }
  expect_error(ErrorKind::kUsage, {"dtype must be f32, f16 or bf16, got Double"},
               [&] { accumulate_gradients_in(at::kDouble, parameters); });
  loss_of(net, at::kBFloat16).backward();
  expect_error(ErrorKind::kUsage, {"gradients must be zeroed before their type changes, got one of Float"},
               [&] { accumulate_gradients_in(at::kHalf, parameters); });
  expect_error(ErrorKind::kUsage, {"parameters must be f32 leaves, got Double"},
               [&] { accumulate_gradients_in(at::kHalf, {torch::ones({2}, at::kDouble)}); });
}

}  // namespace
}  // namespace palimpsest::amp
