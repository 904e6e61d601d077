// The host's knowledge of weights while a device runs behind it. The program's operators call CUDA kernels.
#include "palimpsest/ops/invertibility/predictor.h"
#include "tests/ops/abn_case.h"

#include <gtest/gtest.h>

namespace palimpsest::ops::tests {
namespace {

/// A layer whose weight and bias stay the same tensors from step to step, as those of a module do.
struct Trained {
  AbnCase c = make_case({4, 8, 6, 7}, at::kFloat);
  at::Tensor weight = c.weight->detach().abs().set_requires_grad(true),
             bias = c.bias->detach().clone().set_requires_grad(true);

  struct Gradients {
    at::Tensor dx, dweight, dbias;
  };

  Gradients pass(Saved saved = Saved::kOutput) const {
    const at::Tensor x = c.base.detach().clone().set_requires_grad(true);
    AbnOptions options = c.options;
    options.saved = saved;
    const at::Tensor z = abn(x, {weight, bias}, options);
    const auto g = torch::autograd::grad({z}, {x, weight, bias}, {c.dz});
    return {g[0], g[1], g[2]};
  }

  /// Writes weight and bias once each, as an optimizer does.
  void step(int64_t channel, double to) {
    const at::NoGradGuard no_grad;
    at::Tensor by = torch::zeros_like(weight);
    by[channel] = to - weight[channel].item<double>();
    weight.add_(by);
    bias.add_(0.001);
  }

  /// Writes the values as torch::load and load_state_dict do.
  void load(const at::Tensor& values) {
    const at::NoGradGuard no_grad;
    weight.copy_(values);
  }

  void expect_right(const Gradients& got) const {
    AbnCase truth = c;
    truth.weight = weight;
    truth.bias = bias;
    truth.running_mean = truth.running_var = std::nullopt;
    const Outcome want = run_truth(truth);
    for (const auto& [g, w] :
         {std::pair{got.dx, want.dx}, {got.dweight, want.dweight}, {got.dbias, want.dbias}})
      EXPECT_LE(relative_error(g, w), tolerance_across_kinks(at::kFloat));
    // And of each channel for itself, where it is no rounding of others'.
    for (int64_t i = 0; i < 8; ++i)
      EXPECT_LE(relative_error(got.dweight[i], want.dweight[i]), testing::kChannelF32) << "channel " << i;
  }
};

class InvertibilityPredictor : public ::testing::Test {
 protected:
  void SetUp() override { reset_abn_fallback_stats(); }
};

TEST_F(InvertibilityPredictor, AfterItsFirstPassALayerWaitsForNothing) {
  Trained layer;
  const int64_t before = invertibility::host_waits();
  layer.pass();
  EXPECT_EQ(invertibility::host_waits() - before, 1) << "the first pass reads the weight";
  layer.step(3, 0.9);
  layer.pass();
  for (int i = 0; i < 40; ++i) {
    if (i % 3 != 0) layer.step(3, 0.9 - 0.01 * i);  // gradients of several passes, too
    layer.expect_right(layer.pass());
  }
  EXPECT_EQ(invertibility::host_waits() - before, 1);
  EXPECT_EQ(abn_fallback_stats().channels + abn_fallback_stats().late, 0);
}

TEST_F(InvertibilityPredictor, ALossOfThreeQuartersInTheFirstStepIsForeseen) {
  Trained layer;
  {
    const at::NoGradGuard no_grad;
    layer.weight.fill_(1.0), layer.bias.fill_(30.0);  // 60 |weight| < |bias| is degenerate
  }
  const int64_t before = invertibility::host_waits();
  layer.pass();
  EXPECT_EQ(abn_fallback_stats().channels + abn_fallback_stats().layers, 0);
  layer.step(5, 0.3);
  layer.expect_right(layer.pass());
  EXPECT_GT(abn_fallback_stats().channels + abn_fallback_stats().layers, 0);
  layer.step(5, 0.3);
  layer.expect_right(layer.pass());
  EXPECT_EQ(invertibility::host_waits() - before, 1);
  EXPECT_EQ(abn_fallback_stats().late, 0);
}

TEST_F(InvertibilityPredictor, WritesBeforeTheFirstBackwardAreNoStep) {
  for (const bool backward : {false, true}) {
    Trained layer;
    const int64_t before = invertibility::host_waits();
    if (backward)
      layer.pass();
    else
      abn(layer.c.base, {layer.weight, layer.bias}, layer.c.options);
    at::Tensor loaded = torch::ones(8);
    loaded[6] = 0;
    for (int i = 0; i < (backward ? 5 : 1); ++i) layer.load(loaded);  // no optimizer writes so often
    layer.expect_right(layer.pass());
    EXPECT_EQ(invertibility::host_waits() - before, 2);
    EXPECT_EQ(abn_fallback_stats().late, 0);
  }
}

TEST_F(InvertibilityPredictor, AWeightThatWalksToZeroIsForeseen) {
  for (const double per_step : {0.5, 0.7, 0.9}) {
    reset_abn_fallback_stats();
    Trained layer;
    layer.step(5, 1);
    layer.pass();
    double weight = 1;
    for (int i = 0; i < 60; ++i) {
      layer.step(5, weight *= per_step);
      layer.expect_right(layer.pass());
    }
    EXPECT_GT(abn_fallback_stats().channels, 0) << per_step;
    EXPECT_EQ(abn_fallback_stats().late, 0) << per_step;
  }
}

TEST_F(InvertibilityPredictor, LoadedWeightsAreReadAtOnce) {
  Trained layer;
  for (int i = 0; i < 4; ++i) {
    layer.pass();
    layer.step(2, 0.5 + 0.1 * i);
  }
  const int64_t before = invertibility::host_waits();
  at::Tensor loaded = torch::ones(8);
  loaded[6] = 0;
  layer.load(loaded);  // behind a step: one write more than usual
  layer.expect_right(layer.pass());
  EXPECT_EQ(invertibility::host_waits() - before, 1);
  EXPECT_EQ(abn_fallback_stats().channels, 1);
  layer.load(torch::zeros(8));
  layer.expect_right(layer.pass());
  EXPECT_EQ(abn_fallback_stats().layers, 1);
  EXPECT_EQ(abn_fallback_stats().late, 0);
}

TEST_F(InvertibilityPredictor, AJumpWithinAStepIsFoundOutByTheNextPass) {
  Trained layer;
  for (int i = 0; i < 4; ++i) {
    layer.pass();
    layer.step(2, 0.5 + 0.01 * i);
  }
  layer.pass();
  layer.step(4, 0.0);
  const Trained::Gradients missed = layer.pass();
  EXPECT_TRUE(missed.dx.isfinite().all().item<bool>());
  EXPECT_EQ(missed.dweight[4].item<float>(), 0) << "nothing is known of it, and nothing is infinite";
  EXPECT_EQ(abn_fallback_stats().channels, 0);
  EXPECT_EQ(abn_fallback_stats().late, 0);
  layer.step(2, 0.5);
  layer.expect_right(layer.pass());
  EXPECT_EQ(abn_fallback_stats().late, 1);
  EXPECT_EQ(abn_fallback_stats().channels, 1);
}

TEST_F(InvertibilityPredictor, WhatForwardChoseBackwardKeepsTo) {
  // Two passes before the first backward: the second one knows more than the first.
  Trained layer;
  abn(layer.c.base, {layer.weight, layer.bias}, layer.c.options);
  layer.step(1, 1e-9);  // read at once: no backward ran, so it is no optimizer's step
  const at::Tensor x = layer.c.base.detach().clone().set_requires_grad(true);
  const at::Tensor first = abn(x, {layer.weight, layer.bias}), second = abn(x, {layer.weight, layer.bias});
  for (const at::Tensor& z : {second, first}) {
    const auto g = torch::autograd::grad({z}, {x, layer.weight, layer.bias}, {layer.c.dz});
    layer.expect_right({g[0], g[1], g[2]});
  }
}

TEST_F(InvertibilityPredictor, YIsNotKeptForAChannelThatItCannotGiveBack) {
  Trained layer;
  layer.pass(Saved::kPreActivation);
  for (int i = 0; i < 3; ++i) {
    layer.step(7, 1e-3 * std::pow(0.1, i));
    layer.expect_right(layer.pass(Saved::kPreActivation));
  }
}

TEST_F(InvertibilityPredictor, AResidualIsSampledOnSomePassesOnly) {
  Trained layer;
  layer.c.residual = torch::randn({4, 8, 6, 7});
  const int64_t before = invertibility::host_waits();
  for (int i = 0; i < 20; ++i) {
    const at::Tensor x = layer.c.base.detach().clone().set_requires_grad(true);
    const at::Tensor z = abn(x, {layer.weight, layer.bias}, {}, layer.c.residual);
    torch::autograd::grad({z}, {x}, {layer.c.dz});
  }
  EXPECT_EQ(invertibility::host_waits() - before, 1);
  *layer.c.residual *= 1000.0;
  for (int i = 0; i < 16; ++i)
    abn(layer.c.base.detach().clone().requires_grad_(), {layer.weight, layer.bias}, {}, layer.c.residual);
  EXPECT_GT(abn_fallback_stats().layers, 0) << "a residual that hides x in every channel";
}

TEST_F(InvertibilityPredictor, WithoutAWeightTheResidualIsReadOnEveryPass) {
  const at::Tensor x = torch::randn({4, 8, 6, 7}).set_requires_grad(true),
                   residual = torch::randn({4, 8, 6, 7});
  const int64_t before = invertibility::host_waits();
  for (int i = 0; i < 3; ++i) abn(x, {}, {}, residual);
  EXPECT_EQ(invertibility::host_waits() - before, 3);
  for (int i = 0; i < 3; ++i) abn(x, {});
  EXPECT_EQ(invertibility::host_waits() - before, 3) << "nothing to read";
}

}  // namespace
}  // namespace palimpsest::ops::tests
