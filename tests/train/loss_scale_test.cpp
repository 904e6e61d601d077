#include "palimpsest/train/loss_scale.h"

#include "tests/train/support.h"

#include <gtest/gtest.h>

#include <string>

namespace palimpsest::train {
namespace {

TEST(LossScale, IsDynamicAutoOrANumber) {
  EXPECT_EQ(parse_loss_scale("128").constant, 128);
  EXPECT_EQ(parse_loss_scale("0.5").kind, LossScale::Kind::kConstant);
  EXPECT_EQ(parse_loss_scale("dynamic").kind, LossScale::Kind::kDynamic);
  EXPECT_EQ(parse_loss_scale("auto").kind, LossScale::Kind::kAuto);
}

TEST(LossScale, AnyOtherTextIsRefused) {
  for (const std::string scale : {"0", "-1", "nan", "inf", "1e39", "", "8x", "dynamo"})
    testing::expect_error(
        ErrorKind::kUsage,
        {"loss_scale must be 'dynamic', 'auto' or a number above 0 that f32 holds (1e-45 to 3.4e38), got '" +
         scale + "'"},
        [&] { parse_loss_scale(scale); });
}

}  // namespace
}  // namespace palimpsest::train
