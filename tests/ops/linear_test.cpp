#include "palimpsest/ops/linear.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

/// Without autocast; tests/ops/autocast_test.cpp has the rest.
namespace palimpsest::ops::linear_tests {
namespace {

TEST(Linear, WithoutAutocastIsLibtorchsBitForBit) {
  torch::manual_seed(6);
  for (const bool has_bias : {false, true}) {
    for (const auto& sizes : {std::vector<int64_t>{16}, {5, 16}, {2, 3, 16}, {0, 16}}) {
      const at::Tensor x = torch::randn(sizes).set_requires_grad(true),
                       weight = torch::randn({7, 16}).set_requires_grad(true);
      std::vector<at::Tensor> operands{x, weight};
      std::optional<at::Tensor> bias;
      if (has_bias) operands.push_back(*(bias = torch::randn(7).set_requires_grad(true)));
      const at::Tensor got = ops::linear(x, weight, bias), want = at::linear(x, weight, bias);
      EXPECT_TRUE(got.equal(want));
      const at::Tensor dout = torch::randn(want.sizes());
      const auto got_gradients = torch::autograd::grad({got}, operands, {dout});
      const auto want_gradients = torch::autograd::grad({want}, operands, {dout});
      for (std::size_t i = 0; i < operands.size(); ++i)
        EXPECT_TRUE(got_gradients[i].equal(want_gradients[i])) << "operand " << i;
    }
  }
}

}  // namespace
}  // namespace palimpsest::ops::linear_tests
