// The mean over all pixels against libtorch's, and the memory of its gradient.
#include "palimpsest/ops/spatial_mean.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "tests/support/error_of.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace palimpsest::ops::tests {
namespace {

TEST(SpatialMean, IsThatOfLibtorchWithItsGradient) {
  for (const auto& size :
       std::vector<std::vector<int64_t>>{{2, 3, 5, 7}, {4, 8, 9}, {2, 3, 2, 3, 4}, {0, 3, 4, 4}})
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(c10::str(size, " ", dtype));
      torch::manual_seed(3);
      const auto x = torch::randn(size).to(dtype).requires_grad_(true);
      std::vector<int64_t> spatial;
      for (size_t i = 2; i < size.size(); ++i) spatial.push_back(static_cast<int64_t>(i));
      const auto want = x.mean(spatial, /*keepdim=*/true), got = spatial_mean(x);
      EXPECT_TRUE(torch::equal(got, want));
      const auto dout = torch::randn(want.sizes()).to(dtype);
      EXPECT_TRUE(torch::equal(torch::autograd::grad({got}, {x}, {dout})[0],
                               torch::autograd::grad({want}, {x}, {dout})[0]));
    }
  EXPECT_FALSE(spatial_mean(torch::randn({1, 2, 3, 3})).requires_grad());
}

TEST(SpatialMean, HasASecondDerivative) {
  const auto x = torch::randn({2, 3, 4, 5}, at::kDouble).requires_grad_(true);
  const auto first = torch::autograd::grad({spatial_mean(x).square().sum()}, {x}, {}, true, true)[0];
  const auto want = torch::autograd::grad({x.mean({2, 3}).square().sum()}, {x}, {}, true, true)[0];
  const auto second = torch::autograd::grad({first.square().sum()}, {x})[0];
  EXPECT_TRUE(torch::allclose(second, torch::autograd::grad({want.square().sum()}, {x})[0]));
}

TEST(SpatialMean, ItsGradientIsAddedInPlaceToThatOfALaterReader) {
  if (!memory::counting_allocator_installed()) GTEST_SKIP() << "needs the counting allocator";
  const auto leaf = torch::randn({4, 16, 64, 64}).requires_grad_(true);
  const auto x = leaf * 1.0;
  const auto mean = spatial_mean(x);
  const auto other = x.neg();
  const auto ones = torch::ones_like(other), of_mean = torch::ones_like(mean);
  const auto size = static_cast<int64_t>(x.nbytes());
  memory::Meter meter;
  const auto gradient = torch::autograd::grad({mean, other}, {leaf}, {of_mean, ones})[0];
  // The gradient of x, and that of the leaf.
  EXPECT_LE(meter.peak_bytes() - meter.base_bytes(), 2 * size + 16384);
  EXPECT_TRUE(torch::allclose(gradient, torch::full_like(leaf, 1.0 / 4096 - 1)));
}

TEST(SpatialMean, RefusesWhatHasNoPixels) {
  for (const auto& x : {torch::randn({3, 4}), torch::ones({1, 2, 3, 3}, at::kLong)})
    EXPECT_NE(testing::error_of([&] { spatial_mean(x); }).find("[spatial_mean] x must be"),
              std::string::npos);
}

}  // namespace
}  // namespace palimpsest::ops::tests
