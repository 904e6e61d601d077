#include "palimpsest/amp/grad_scaler.h"

#include "palimpsest/memory/buffer_snapshot.h"
#include "tests/amp/support.h"
#include "tests/support/expect_error.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace palimpsest::amp {
namespace {

using palimpsest::testing::expect_error;
using palimpsest::testing::kClippedNorm;
using palimpsest::testing::usage_error;
using testing::CallCounter;
using testing::images;
using testing::kUncached;
using testing::loss_of;
using testing::UsersNet;

constexpr float kInf = std::numeric_limits<float>::infinity();

/// A parameter of two values and an optimizer for it; `backward` leaves scale * gradient.
struct Toy {
  at::Tensor parameter = torch::tensor({1.0f, -2.0f}).set_requires_grad(true);
  torch::optim::SGD sgd{{parameter}, torch::optim::SGDOptions(0.5).momentum(0.5)};

  void backward(GradScaler& scaler, float gradient) const {
    scaler.scale((parameter * gradient).sum()).backward();
  }
};

GradScalerOptions small_options() {
  GradScalerOptions options;
  options.init_scale = 8;
  options.growth_interval = 3;
  return options;
}

TEST(GradScaler, TheOptimizerSeesUnscaledGradients) {
  Toy toy;
  GradScaler scaler(small_options());
  toy.backward(scaler, 0.25f);
  EXPECT_TRUE(torch::equal(toy.parameter.grad(), torch::full({2}, 2.0f))) << "scaled by 8";
  EXPECT_TRUE(scaler.step(toy.sgd));
  EXPECT_TRUE(torch::equal(toy.parameter.detach(), torch::tensor({0.875f, -2.125f})));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 8);
}

TEST(GradScaler, AnOverflowSkipsThatStepAloneAndLeavesParametersAndMomentum) {
  for (const float bad : {kInf, -kInf, std::nanf("")}) {
    Toy toy, plain;
    GradScaler scaler(small_options());
    for (int step = 0; step < 4; ++step) {
      toy.backward(scaler, step == 1 ? bad : 1.0f);
      EXPECT_EQ(scaler.step(toy.sgd), step != 1);
      scaler.update();
      EXPECT_EQ(scaler.skipped_in_a_row(), step == 1);
      toy.sgd.zero_grad();
      if (step == 1) continue;  // the plain run never sees it
      (plain.parameter * 1.0f).sum().backward();
      plain.sgd.step();
      plain.sgd.zero_grad();
    }
    EXPECT_TRUE(torch::equal(toy.parameter.detach(), plain.parameter.detach()));
    EXPECT_EQ(scaler.get_scale(), 4) << "halved once";
  }
}

TEST(GradScaler, TheScaleGrowsAfterAnUnbrokenRow) {
  Toy toy;
  GradScaler scaler(small_options());
  std::vector<double> scales;
  for (const float gradient : {1.0f, 1.0f, kInf, 1.0f, 1.0f, 1.0f, 1.0f}) {
    toy.backward(scaler, gradient);
    scaler.step(toy.sgd);
    scaler.update();
    toy.sgd.zero_grad();
    scales.push_back(scaler.get_scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 4, 4, 4, 8, 8}));
  EXPECT_EQ(scaler.state(), (GradScalerState{8, 1, 0}));
}

TEST(GradScaler, AConstantScaleStaysAndSkipsAllTheSame) {
  Toy toy;
  GradScaler scaler = GradScaler::constant(128);
  for (int step = 0; step < 3; ++step) {
    toy.backward(scaler, kInf);
    EXPECT_FALSE(scaler.step(toy.sgd));
    scaler.update();
    toy.sgd.zero_grad();
  }
  EXPECT_EQ(scaler.get_scale(), 128);
  EXPECT_EQ(scaler.skipped_in_a_row(), 3);
  EXPECT_TRUE(torch::equal(toy.parameter.detach(), torch::tensor({1.0f, -2.0f})));
}

TEST(GradScaler, ClippingSeesUnscaledGradients) {
  Toy toy;
  GradScaler scaler(small_options());
  toy.backward(scaler, 3.0f);
  scaler.unscale_(toy.sgd);
  const double norm = torch::nn::utils::clip_grad_norm_(toy.parameter, 1.0);
  EXPECT_NEAR(norm, 3 * std::sqrt(2.0), kClippedNorm);
  EXPECT_TRUE(scaler.step(toy.sgd)) << "not unscaled once more";
  EXPECT_NEAR(toy.parameter[0].item<float>(), 1 - 0.5 / std::sqrt(2.0), kClippedNorm);
}

TEST(GradScaler, GradientsMayBeAccumulatedBeforeTheStep) {
  Toy toy;
  GradScaler scaler(small_options());
  toy.backward(scaler, 0.5f);
  toy.backward(scaler, 0.25f);
  EXPECT_TRUE(scaler.step(toy.sgd));
  EXPECT_FLOAT_EQ(toy.parameter[0].item<float>(), 1 - 0.5f * 0.75f);
}

TEST(GradScaler, OfTwoOptimizersOnlyTheOneWithTheOverflowIsSkipped) {
  Toy good, bad;
  GradScaler scaler(small_options());
  const auto losses = scaler.scale({good.parameter.sum(), (bad.parameter * kInf).sum()});
  (losses[0] + losses[1]).backward();
  EXPECT_TRUE(scaler.step(good.sgd));
  EXPECT_FALSE(scaler.step(bad.sgd));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 4);
  EXPECT_EQ(scaler.skipped_in_a_row(), 1);
}

TEST(GradScaler, NothingWaitsForTheDeviceButTheStep) {
  Toy toy;
  GradScaler scaler(small_options());
  const CallCounter reads("aten::_local_scalar_dense");
  toy.backward(scaler, 1.0f);
  scaler.unscale_(toy.sgd);
  EXPECT_EQ(reads.calls(), 0);
  scaler.step(toy.sgd);
  EXPECT_EQ(reads.calls(), 1);
  scaler.update();
  EXPECT_EQ(reads.calls(), 1);
}

TEST(GradScaler, AGroupSkipsTogether) {
  // Two ranks in turn, as if each waited for the other: the second finds the overflow that the first has not.
  Toy first, second;
  GradScaler a(small_options()), b(small_options());
  at::Tensor found_by_second;
  b.reduce_found_inf_with([&](at::Tensor& found) { found_by_second = found.clone(); });
  second.backward(b, kInf);
  b.unscale_(second.sgd);
  a.reduce_found_inf_with([&](at::Tensor& found) { found.add_(found_by_second); });
  first.backward(a, 1.0f);
  EXPECT_FALSE(a.step(first.sgd));
  EXPECT_FALSE(b.step(second.sgd));
  a.update();
  b.update();
  EXPECT_EQ(a.get_scale(), b.get_scale());
}

TEST(GradScaler, SixteenBitGradientsOfF32ParametersAreUnscaledInF32) {
  Toy toy;
  toy.parameter.set_grad_dtype(at::kHalf);
  GradScaler scaler = GradScaler::constant(65536);
  const float tiny = std::ldexp(1.0f, -26);  // no f16 number
  toy.backward(scaler, tiny);
  EXPECT_EQ(toy.parameter.grad().scalar_type(), at::kHalf);
  scaler.unscale_(toy.sgd);
  EXPECT_TRUE(torch::equal(toy.parameter.grad(), torch::full({2}, tiny)));
}

TEST(GradScaler, ItsStateContinuesInAnother) {
  Toy toy, twin;
  GradScaler scaler(small_options()), other;
  for (const float gradient : {1.0f, kInf, 1.0f}) {
    toy.backward(scaler, gradient);
    scaler.step(toy.sgd);
    scaler.update();
    toy.sgd.zero_grad();
  }
  for (const bool used_before : {false, true}) {
    GradScaler next(small_options());
    if (used_before) next.scale(torch::ones({}));
    next.load(scaler.state());
    EXPECT_EQ(next.state(), scaler.state());
    for (int step = 0; step < 2; ++step) {
      twin.backward(next, 1.0f);
      next.step(twin.sgd);
      next.update();
      twin.sgd.zero_grad();
    }
    EXPECT_EQ(next.get_scale(), 8) << "the third in a row";
  }
}

TEST(GradScaler, AStateFromALongerIntervalGrowsAfterTheNextStep) {
  for (const bool used_before : {false, true}) {
    Toy toy;
    GradScaler scaler(small_options());
    if (used_before) scaler.scale(torch::ones({}));
    scaler.load({8, 4950, 0});
    std::vector<double> scales;
    for (int step = 0; step < 2; ++step) {
      toy.backward(scaler, 1.0f);
      scaler.step(toy.sgd);
      scaler.update();
      toy.sgd.zero_grad();
      scales.push_back(scaler.get_scale());
    }
    EXPECT_EQ(scales, (std::vector<double>{16, 16})) << "used before: " << used_before;
  }
}

TEST(GradScaler, AWrongOrderIsRefused) {
  Toy toy;
  GradScaler scaler(small_options());
  EXPECT_NE(usage_error([&] { scaler.unscale_(toy.sgd); }).find("scale(loss)"), std::string::npos);
  EXPECT_NE(usage_error([&] { scaler.update(); }).find("must come after step"), std::string::npos);
  scaler = GradScaler(small_options());
  scaler.scale(torch::ones({}));
  EXPECT_NE(usage_error([&] { scaler.step(toy.sgd); }).find("no parameter of the optimizer has a gradient"),
            std::string::npos);
  scaler = GradScaler(small_options());
  toy.backward(scaler, 1.0f);
  scaler.unscale_(toy.sgd);
  EXPECT_NE(usage_error([&] { scaler.unscale_(toy.sgd); }).find("called twice"), std::string::npos);
  scaler.step(toy.sgd);
  EXPECT_NE(usage_error([&] { scaler.unscale_(toy.sgd); }).find("called after it"), std::string::npos);
  EXPECT_NE(usage_error([&] { scaler.step(toy.sgd); }).find("called twice before update"), std::string::npos);
}

TEST(GradScaler, WhatIsOutOfRangeIsRefused) {
  for (const double scale : {0.0, -1.0, std::nan(""), HUGE_VAL, 1e39, 1e-46}) {
    expect_error(ErrorKind::kUsage, {"the scale must be above 0 and finite in f32"},
                 [&] { GradScaler::constant(scale); });
    expect_error(ErrorKind::kUsage, {"the scale must be above 0"}, [&] { GradScaler().update(scale); });
    expect_error(ErrorKind::kUsage, {"the scale must be above 0"}, [&] { GradScaler().load({scale, 0, 0}); });
  }
  const auto refused = [](const char* name, auto&& change) {
    GradScalerOptions options;
    change(options);
    expect_error(ErrorKind::kUsage, {name}, [&] { GradScaler scaler(options); });
  };
  refused("growth_factor must be above 1, got 1", [](auto& o) { o.growth_factor = 1; });
  refused("backoff_factor must be in (0, 1), got 1", [](auto& o) { o.backoff_factor = 1; });
  refused("backoff_factor must be in (0, 1), got 0", [](auto& o) { o.backoff_factor = 0; });
  refused("growth_interval must be at least 1, got 0", [](auto& o) { o.growth_interval = 0; });

  const auto half = torch::ones({2}).to(at::kHalf).set_requires_grad(true);
  torch::optim::SGD sgd({half}, torch::optim::SGDOptions(0.1));
  GradScaler scaler;
  scaler.scale(half.sum()).backward();
  EXPECT_NE(usage_error([&] { scaler.unscale_(sgd); }).find("parameters must not be f16"), std::string::npos);
}

TEST(GradScaler, ASkippedStepLeavesRunningStatisticsAsTheyWereWithABufferSnapshot) {
  UsersNet net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  memory::BufferSnapshot statistics(net->buffers());
  GradScaler scaler;
  loss_of(net, at::kBFloat16).backward();  // statistics of their own
  net->zero_grad();
  const auto mean = net->bn->running_mean.clone(), count = net->bn->num_batches_tracked.clone();
  statistics.save();
  {
    const AutocastGuard guard(at::kCPU, at::kBFloat16, kUncached);
    const auto poisoned = images().index_fill_(0, torch::tensor({1}), kInf);
    scaler.scale(net(poisoned).to(at::kFloat).sum()).backward();
  }
  EXPECT_FALSE(net->bn->running_mean.isfinite().all().item<bool>()) << "and would stay so";
  ASSERT_FALSE(scaler.step(sgd));
  statistics.restore();
  EXPECT_TRUE(torch::equal(net->bn->running_mean, mean));
  EXPECT_TRUE(torch::equal(net->bn->num_batches_tracked, count));
}

TEST(GradScaler, TheHostKnowsTheScaleOfTheDeviceWithoutReadingIt) {
  Toy toy;
  GradScalerOptions options = small_options();
  options.init_scale = 3e37;  // grows to infinity once: then it stays
  options.backoff_factor = 0.3;
  GradScaler scaler(options);
  const auto on_device = [&] { return scaler.scale(torch::ones({})).item<double>(); };
  for (int step = 0; step < 20; ++step) {
    const bool overflows = step % 9 >= 7;
    toy.sgd.zero_grad();
    toy.backward(scaler, overflows ? kInf : 1e-9f);
    EXPECT_NE(scaler.step(toy.sgd), overflows);
    const CallCounter reads("aten::_local_scalar_dense");
    scaler.update();
    const double known = scaler.get_scale();
    scaler.state();
    EXPECT_EQ(reads.calls(), 0);
    EXPECT_EQ(known, on_device()) << "step " << step;
  }
  // Without step() the host does not know whether there was an overflow: it reads.
  toy.sgd.zero_grad();
  toy.backward(scaler, kInf);
  scaler.unscale_(toy.sgd);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), on_device());
}

}  // namespace
}  // namespace palimpsest::amp
