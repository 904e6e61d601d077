// Layers over many steps while weights walk, on kernels of a device that runs behind the host.
#include "palimpsest/memory/recompute.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/invertibility/saved_channels.h"
#include "palimpsest/ops/invertibility/slot_plan.h"
#include "tests/ops/abn_case.h"
#include "tests/support/cuda_emulator/emulator.h"

#include <gtest/gtest.h>

namespace palimpsest::ops::tests {
namespace {

struct Gradients {
  at::Tensor dx, dweight, dbias;

  bool operator==(const Gradients& other) const {
    return dx.equal(other.dx) && dweight.equal(other.dweight) && dbias.equal(other.dbias);
  }
};

/// A layer whose weight and bias stay the same tensors from step to step, as those of a module do.
struct Trained {
  AbnCase c = make_case({4, 8, 6, 7}, at::kFloat);
  at::Tensor weight = c.weight->detach().abs().set_requires_grad(true),
             bias = c.bias->detach().clone().set_requires_grad(true);

  enum class Run { kPlain, kRecomputed };
  Gradients pass(Saved saved = Saved::kOutput, Run run = Run::kPlain) const {
    const at::Tensor x = c.base.detach().clone().set_requires_grad(true);
    AbnOptions options = c.options;
    options.saved = saved;
    const OptionalTensor residual = c.residual ? OptionalTensor(c.residual->detach()) : std::nullopt;
    const auto layer = [*this, options, residual](const at::Tensor& in) {
      return abn(in, {weight, bias}, options, residual);
    };
    const at::Tensor z = run == Run::kPlain ? layer(x) : memory::recompute(layer, x);
    const auto g = torch::autograd::grad({z}, {x, weight, bias}, {c.dz});
    return {g[0], g[1], g[2]};
  }

  /// Writes weight and bias once each, as an optimizer does.
  void step(int64_t channel, double to) const {
    const at::NoGradGuard no_grad;
    at::Tensor by = torch::zeros_like(weight);
    by[channel] = to - weight[channel].item<double>();
    at::Tensor(weight).add_(by);
    at::Tensor(bias).add_(0.001);
  }

  /// Writes the values as torch::load and load_state_dict do.
  void load(const at::Tensor& values) const {
    const at::NoGradGuard no_grad;
    at::Tensor(weight).copy_(values);
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

class InvertibilityPasses : public ::testing::Test {
 protected:
  void SetUp() override { reset_abn_fallback_stats(); }
};

constexpr Saved kKindsWithSlots[] = {Saved::kOutput, Saved::kOutputForm1, Saved::kPreActivation};

/// A weight that walks to 0 and through it, and comes back, in 60 steps.
double walk(int step) {
  const double down = std::pow(0.75, step);
  return step < 25 ? down : step < 30 ? 0 : -std::pow(0.75, 60 - step);
}

TEST_F(InvertibilityPasses, AWeightThatWalksThroughZeroAndBackHasExactGradients) {
  for (const Saved saved : kKindsWithSlots) {
    reset_abn_fallback_stats();
    const Trained layer;
    layer.step(5, 1);
    const int64_t before = invertibility::host_waits();
    for (int i = 0; i < 60; ++i) {
      layer.step(5, walk(i));
      layer.expect_right(layer.pass(saved));
    }
    EXPECT_GT(abn_fallback_stats().channels, 0);
    EXPECT_LE(abn_fallback_stats().late, 1) << "from 0 to one quarter, and to 0";
    EXPECT_EQ(invertibility::host_waits() - before, 1);
  }
}

TEST_F(InvertibilityPasses, RecomputedPassesHaveTheSameGradientsAtEveryStep) {
  for (const Saved saved : kKindsWithSlots) {
    const Trained plain, recomputed;
    for (int i = 0; i < 60; ++i) {
      for (const Trained* layer : {&plain, &recomputed})
        layer->step(5, walk(i)), layer->step(2, walk((i + 17) % 60));
      const bool twice = i % 4 == 1;  // gradients of two parts of a batch
      for (int part = 0; part < (twice ? 2 : 1); ++part)
        EXPECT_TRUE(plain.pass(saved) == recomputed.pass(saved, Trained::Run::kRecomputed)) << "step " << i;
    }
  }
}

TEST_F(InvertibilityPasses, PartsOfABatchWhoseBackwardRunsLaterHaveTheSlotsOfTheirForward) {
  // Both forward passes run before both backward passes, and run again in them.
  const Trained layer;
  for (int i = 0; i < 60; ++i) {
    layer.step(5, walk(i));
    const at::Tensor x = layer.c.base.detach().clone().set_requires_grad(true);
    const auto run = [layer](const at::Tensor& in) { return abn(in, {layer.weight, layer.bias}); };
    const at::Tensor first = memory::recompute(run, x), second = memory::recompute(run, x);
    for (const at::Tensor& z : {second, first}) {
      const auto g = torch::autograd::grad({z}, {x, layer.weight, layer.bias}, {layer.c.dz});
      if (i != 25) layer.expect_right({g[0], g[1], g[2]});  // one step takes a quarter of the weight to 0
    }
  }
}

TEST_F(InvertibilityPasses, ARunThatContinuesFromACheckpointHasTheSameBits) {
  for (const Saved saved : kKindsWithSlots) {
    const Trained layer;
    for (int i = 0; i < 60; ++i) {
      layer.step(5, walk(i));
      const Gradients got = layer.pass(saved);
      if (i == 25 || i % 3 != 0) continue;
      Trained resumed;  // other tensors with the same values: nothing is known of them
      resumed.weight = layer.weight.detach().clone().set_requires_grad(true);
      resumed.bias = layer.bias.detach().clone().set_requires_grad(true);
      EXPECT_TRUE(resumed.pass(saved) == got) << "step " << i;
    }
  }
}

TEST_F(InvertibilityPasses, ALossOfHalfInTheFirstStepIsForeseen) {
  const Trained layer;
  {
    const at::NoGradGuard no_grad;
    at::Tensor(layer.weight).fill_(1.0), at::Tensor(layer.bias).fill_(1.0);
    at::Tensor(layer.bias)[5] = 31;  // 60 |weight| < |bias| is non-invertible
  }
  const int64_t before = invertibility::host_waits();
  layer.pass();
  EXPECT_EQ(abn_fallback_stats().channels, 1) << "one slot, in case";
  layer.step(5, 0.51);
  layer.expect_right(layer.pass());
  layer.step(5, 0.3);
  layer.expect_right(layer.pass());
  EXPECT_EQ(invertibility::host_waits() - before, 1);
  EXPECT_EQ(abn_fallback_stats().late, 0);
}

TEST_F(InvertibilityPasses, LoadedWeightsAreReadAtOnce) {
  const Trained layer;
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

TEST_F(InvertibilityPasses, AJumpWithinAStepIsCountedAtOnceAndRightInTheNextPass) {
  const Trained layer;
  for (int i = 0; i < 4; ++i) {
    layer.pass();
    layer.step(2, 0.5 + 0.01 * i);
  }
  layer.pass();
  layer.step(4, 0.0);
  const Gradients missed = layer.pass();
  EXPECT_TRUE(missed.dx.isfinite().all().item<bool>());
  EXPECT_EQ(missed.dweight[4].item<float>(), 0) << "nothing is known of it, and nothing is infinite";
  EXPECT_EQ(abn_fallback_stats().channels, 0);
  EXPECT_EQ(abn_fallback_stats().late, 1);
  layer.step(2, 0.5);
  layer.expect_right(layer.pass());
  EXPECT_EQ(abn_fallback_stats().late, 1);
  EXPECT_EQ(abn_fallback_stats().channels, 1);
  reset_abn_fallback_stats();
  EXPECT_EQ(abn_fallback_stats().late, 0);
}

TEST_F(InvertibilityPasses, ALateChannelIsNotCountedAgainWhereItsPassRunsAgain) {
  const Trained layer;
  layer.pass();
  layer.step(4, 0.0);
  layer.pass(Saved::kOutput, Trained::Run::kRecomputed);
  EXPECT_EQ(abn_fallback_stats().late, 1);
}

TEST_F(InvertibilityPasses, WhatForwardChoseBackwardKeepsTo) {
  // Two passes before the first backward: the second one knows more than the first.
  const Trained layer;
  abn(layer.c.base, {layer.weight, layer.bias}, layer.c.options);
  layer.step(1, 1e-9);  // read at once: no backward ran, so it is no optimizer's step
  const at::Tensor x = layer.c.base.detach().clone().set_requires_grad(true);
  const at::Tensor first = abn(x, {layer.weight, layer.bias}), second = abn(x, {layer.weight, layer.bias});
  for (const at::Tensor& z : {second, first}) {
    const auto g = torch::autograd::grad({z}, {x, layer.weight, layer.bias}, {layer.c.dz});
    layer.expect_right({g[0], g[1], g[2]});
  }
}

TEST_F(InvertibilityPasses, AResidualIsSampledOnTheDeviceInEveryPass) {
  Trained layer;
  layer.c.residual = torch::randn({4, 8, 6, 7});
  const int64_t before = invertibility::host_waits();
  const auto pass = [&] {
    const at::Tensor x = layer.c.base.detach().clone().set_requires_grad(true);
    const at::Tensor z = abn(x, {layer.weight, layer.bias}, {}, layer.c.residual);
    torch::autograd::grad({z}, {x}, {layer.c.dz});
  };
  for (int i = 0; i < 5; ++i) pass();
  EXPECT_EQ(abn_fallback_stats().layers + abn_fallback_stats().late, 0);
  *layer.c.residual *= 1000.0;
  pass();
  EXPECT_EQ(abn_fallback_stats().late, 8) << "a residual that hides x in every channel";
  pass();
  EXPECT_EQ(abn_fallback_stats().layers, 1);
  EXPECT_EQ(abn_fallback_stats().late, 8);
  EXPECT_EQ(invertibility::host_waits() - before, 1);
}

TEST_F(InvertibilityPasses, ALayerOfTwoUsesIsExactInTheOneThatNeedsSlots) {
  const Trained plain;
  Trained hidden = plain;  // the same weight and bias; a residual hides x in every channel
  hidden.c.residual = (torch::randn({4, 8, 6, 7}) * 1000).set_requires_grad(true);
  plain.pass();
  for (int i = 0; i < 4; ++i) {
    plain.step(2, 0.5 + 0.01 * i);
    const Gradients got = hidden.pass();
    if (i > 0) hidden.expect_right(got);
    plain.expect_right(plain.pass());
  }
  EXPECT_EQ(abn_fallback_stats().late, 8) << "in the first step only";
}

TEST_F(InvertibilityPasses, AGraphThatRecordsAFirstPassSavesAllChannelsAndIsExact) {
  for (const Saved saved : kKindsWithSlots) {
    reset_abn_fallback_stats();
    const Trained layer;
    layer.step(5, 0);
    const int64_t before = invertibility::host_waits();
    {
      const cuda_emulator::Capture graph(nullptr);  // the stream of the tests
      layer.expect_right(layer.pass(saved));
      layer.step(5, 1);
      layer.step(2, 0);
      layer.expect_right(layer.pass(saved));
    }
    EXPECT_EQ(invertibility::host_waits() - before, 0);
    EXPECT_GT(abn_fallback_stats().layers, 0);
    EXPECT_EQ(abn_fallback_stats().late, 0);
  }
}

TEST_F(InvertibilityPasses, WithoutAWeightTheFirstPassOfItsKindWaits) {
  const at::Tensor x = torch::randn({4, 8, 6, 5}).set_requires_grad(true),
                   residual = torch::randn({4, 8, 6, 5});
  const int64_t before = invertibility::host_waits();
  for (int i = 0; i < 3; ++i) abn(x, {}, {}, residual);
  EXPECT_EQ(invertibility::host_waits() - before, 1);
  for (int i = 0; i < 3; ++i) abn(x, {});
  EXPECT_EQ(invertibility::host_waits() - before, 1) << "nothing to read";
}

TEST_F(InvertibilityPasses, ComputedWeightsCostNoWaitAndHaveExactGradients) {
  const Trained layer;
  const auto pass = [&](int i) {
    const at::Tensor x = layer.c.base.detach().clone().set_requires_grad(true);
    const at::Tensor scale = torch::ones(8).set_requires_grad(true);
    const at::Tensor z = abn(x, {layer.weight * scale, layer.bias + 0.0}, layer.c.options);
    const auto g = torch::autograd::grad({z}, {x, layer.weight, layer.bias}, {layer.c.dz});
    if (i != 25) layer.expect_right({g[0], g[1], g[2]});
  };
  pass(-1);
  const int64_t before = invertibility::host_waits();
  for (int i = 0; i < 60; ++i) {
    layer.step(5, walk(i));
    pass(i);
  }
  EXPECT_EQ(invertibility::host_waits() - before, 0);
}

TEST(ChannelView, LeavesTheChannelsOfUnusedSlotsAsTheyAre) {
  using invertibility::ChannelView;
  for (const Layout layout : {Layout::kNCHW, Layout::kChannelsLast}) {
    const at::Tensor full = contiguous_in(layout, torch::randn({3, 64, 5, 7})), vector = torch::randn(64);
    const auto saved = invertibility::allocate_saved_channels(2, full);
    saved.index.copy_(torch::tensor({60, 5 - 64}));
    const ChannelView view(saved, {.shape = {3, 64, 35}, .layout = layout});
    EXPECT_TRUE(view.gather(full).equal(full.index({at::indexing::Slice(), torch::tensor({60, 5})})));
    const at::Tensor want = full.clone(), want_vector = vector.clone();
    want.select(1, 60).add_(1);
    want_vector[60] += 1;
    view.scatter(view.gather(full) + 1, full);
    view.scatter_vector(view.gather_vector(vector) + 1, vector);
    EXPECT_TRUE(full.equal(want));
    EXPECT_TRUE(vector.equal(want_vector));
  }
}

}  // namespace
}  // namespace palimpsest::ops::tests
