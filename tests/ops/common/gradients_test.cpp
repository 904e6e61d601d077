#include "palimpsest/ops/common/gradients.h"

#include "tests/support/error_of.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace palimpsest::ops::common_tests {
namespace {

using testing::error_of;

TEST(StealGradient, TakesADenseGradientThatNobodyElseSees) {
  const at::NoGradGuard no_grad;
  const at::Tensor like = torch::randn({2, 3, 4, 5});
  const at::Tensor own = torch::randn({2, 3, 4, 5});
  EXPECT_TRUE(can_steal_gradient(own, like));
  {
    const at::AutoGradMode recorded(true);
    EXPECT_FALSE(can_steal_gradient(own, like)) << "a graph of this backward pass would save dz";
  }
  {
    const at::Tensor second = own;
    EXPECT_FALSE(can_steal_gradient(own, like)) << "a second reference";
  }
  {
    const at::Tensor view = own.view({6, 20});
    EXPECT_FALSE(can_steal_gradient(own, like)) << "a view";
  }
  {
    const at::Tensor data = own.variable_data();
    EXPECT_FALSE(can_steal_gradient(own, like)) << "a second tensor of the same memory";
  }
  EXPECT_TRUE(can_steal_gradient(own, like));
  EXPECT_FALSE(can_steal_gradient(own, like.to(at::kDouble)));
  EXPECT_FALSE(can_steal_gradient(own, like.contiguous(at::MemoryFormat::ChannelsLast)));
  EXPECT_FALSE(can_steal_gradient(torch::ones({}).expand({2, 3, 4, 5}), like)) << "as the gradient of a sum";
  EXPECT_FALSE(can_steal_gradient(torch::randn({2, 3, 4, 10}).slice(3, 0, 10, 2), like));
  EXPECT_FALSE(can_steal_gradient(own, like.to(at::kMeta)));
}

TEST(DoubleBackward, IsRefusedOnlyInABackwardPassThatRecords) {
  const std::string error = error_of([] { refuse_double_backward("abn_conv", "the plain layers"); });
  EXPECT_NE(error.find("[abn_conv]"), std::string::npos) << error;
  EXPECT_NE(error.find("use the plain layers where one is needed"), std::string::npos) << error;
  const at::NoGradGuard no_grad;
  EXPECT_EQ(error_of([] { refuse_double_backward("abn_conv", "the plain layers"); }), "");
}

TEST(BumpVersion, MakesAutogradNoticeAWrite) {
  const at::Tensor leaf = torch::randn(4).set_requires_grad(true);
  const at::Tensor x = leaf * 1;
  const at::Tensor loss = x.square().sum();
  const auto before = x._version();
  bump_version(x);
  EXPECT_EQ(x._version(), before + 1);
  EXPECT_NE(error_of([&] { loss.backward(); }).find("modified by an inplace operation"), std::string::npos);
}

}  // namespace
}  // namespace palimpsest::ops::common_tests
