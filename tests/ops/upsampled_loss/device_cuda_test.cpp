// The loss of upsampled logits as it runs on a GPU, over tensors of the CPU: the emulator executes the
// kernels.
#include "palimpsest/ops/upsampled_loss/device_cuda.h"

#include "tests/support/operator_calls.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

namespace palimpsest::ops::upsampled_loss_detail {
namespace {

TEST(UpsampledLossOnAGpu, IsThatOfTheCpu) {
  at::manual_seed(4);
  for (const auto type : {at::kFloat, at::kDouble})
    for (const auto& [share, probability, smoothing] :
         {std::tuple{1., 1., 0.}, {0.25, 1., 0.}, {1., 0.3, 0.1}, {0.5, 0.4, 0.}}) {
      const at::Tensor x = at::randn({2, 6, 3, 4}, type) * 2;
      at::Tensor targets = at::randint(6, {2, 20, 25}, at::kLong);
      targets.masked_fill_(at::rand({2, 20, 25}) < 0.2, 255);
      const std::optional<at::Tensor> weight = at::rand({6}, at::kDouble);
      const LossArguments arguments{weight, 255, smoothing, false, share, probability};
      const kernels::UpsampledProblem problem{
          2, 6, {3, 4}, {20, 25}, Layout::kNCHW, type == at::kDouble ? DType::f64 : DType::f32, false};
      int64_t first_wrong = 0;
      const auto [sums, gradient] =
          forward_on_gpu(problem, x, targets, *weight, arguments, true, first_wrong);
      const auto [want_sums, want] = native::forward(x, targets, arguments, true);
      const double tolerance = type == at::kDouble ? 1e-12 : 1e-6;
      EXPECT_EQ(first_wrong, -1);
      const auto numbers = [](const at::Tensor& all) {
        return all.narrow(0, 0, 3);
      };  // not the place beyond all
      EXPECT_TRUE(numbers(sums).allclose(numbers(want_sums), tolerance, tolerance)) << sums << want_sums;
      EXPECT_GE(sums[3].item<double>(), static_cast<double>(targets.numel())) << "no target is wrong";
      const double error = ((gradient - want).abs().max() / want.abs().max()).item<double>();
      EXPECT_LE(error, tolerance) << share << " " << probability << " " << type;
    }
}

TEST(UpsampledLossOnAGpu, FindsAWrongTargetAndTheClasses) {
  const at::Tensor x = at::randn({1, 3, 4, 4});
  at::Tensor targets = at::zeros({1, 8, 8}, at::kByte);
  targets[0][2][5] = 9;
  const std::optional<at::Tensor> none;
  const kernels::UpsampledProblem problem{1, 3, {4, 4}, {8, 8}};
  int64_t first_wrong = -1;
  forward_on_gpu(problem, x, targets, {}, {none, 255, 0, false, 1, 1}, false, first_wrong);
  EXPECT_EQ(first_wrong, 21);
  // Without the check the host waits for nothing, and the wrong target is one that is ignored.
  first_wrong = -1;
  {
    const testing::OperatorCalls calls;
    const auto [sums, gradient] =
        forward_on_gpu(problem, x, targets, {}, {none, 255, 0, false, 1, 1, false}, true, first_wrong);
    EXPECT_EQ(calls.waits(), 0) << calls.text();
    EXPECT_EQ(first_wrong, -1);
    EXPECT_EQ(sums[3].item<double>(), 21);
    targets[0][2][5] = 255;
    const auto [want_sums, want] =
        forward_on_gpu(problem, x, targets, {}, {none, 255, 0, false, 1, 1}, true, first_wrong);
    EXPECT_EQ(calls.waits(), 2) << "the sum that is read here, and the check: " << calls.text();
    EXPECT_TRUE(sums.narrow(0, 0, 3).equal(want_sums.narrow(0, 0, 3)));
    EXPECT_TRUE(gradient.equal(want));
    EXPECT_GE(want_sums[3].item<double>(), 64);
  }
  at::Tensor ids = at::empty({1, 8, 8}, at::kLong);
  argmax_on_gpu(problem, x, ids);
  EXPECT_TRUE(ids.equal(native::argmax(x, {8, 8}, false)));
}

}  // namespace
}  // namespace palimpsest::ops::upsampled_loss_detail
