#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/memory/recompute.h"
#include "palimpsest/nn/inplace_abn.h"
#include "tests/memory/recompute_support.h"

#include <stdexcept>

/// The bytes that segments save for backward, counted by the allocator.
namespace palimpsest::memory {
namespace {

using namespace palimpsest::memory::testing;  // NOLINT(google-build-using-namespace)

torch::nn::Sequential four_convolutions() {
  namespace n = torch::nn;
  return n::Sequential(conv(8, 8), n::ReLU(n::ReLUOptions(true)), conv(8, 8), n::Sigmoid(), conv(8, 8),
                       nn::InPlaceABN(8), conv(8, 8));
}

constexpr int64_t kTensor = 2 * 8 * 16 * 16 * 4;  // bytes of every activation

TEST(RecomputeMemory, ASegmentKeepsItsOutputAndNothingElse) {
  auto net = four_convolutions();
  auto x = torch::randn({2, 8, 16, 16}).set_requires_grad(true);
  {
    Meter plain;
    const auto y = net->forward(x);
    plain.forward_done();
    EXPECT_GT(plain.kept_bytes(), 4 * kTensor);
  }
  Meter meter;
  const auto y = recompute(net, x);
  meter.forward_done();
  EXPECT_EQ(meter.kept_bytes(), kTensor);
}

TEST(RecomputeMemory, ASegmentThatDrawsNumbersAlsoKeepsTheGeneratorsState) {
  torch::nn::Sequential net(conv(8, 8), torch::nn::Dropout(0.5), conv(8, 8));
  const auto x = torch::randn({2, 8, 16, 16});
  Meter meter;
  const auto y = recompute(net, x);
  meter.forward_done();
  EXPECT_EQ(meter.kept_bytes(), kTensor + static_cast<int64_t>(random_state().nbytes()));
}

TEST(RecomputeMemory, NestedSegmentsKeepWhatTheOuterOneDoes) {
  auto net = four_convolutions();
  const auto outer = [net](const at::Tensor& t) {
    return recompute([net](const at::Tensor& u) mutable { return net->forward(u); }, t.sin()).sigmoid();
  };
  auto x = torch::randn({2, 8, 16, 16}).set_requires_grad(true);
  Meter meter;
  const auto y = recompute(outer, x);
  meter.forward_done();
  EXPECT_EQ(meter.kept_bytes(), kTensor);
}

TEST(RecomputeMemory, TheForwardPassNeedsNoMoreThanWithoutAGraph) {
  auto net = four_convolutions();
  const auto x = torch::randn({2, 8, 16, 16});
  const auto peak = [&](auto forward) {
    Meter meter;
    forward();
    return meter.peak_bytes() - meter.base_bytes();
  };
  const auto without = peak([&] {
    const torch::NoGradGuard no_grad;
    net->forward(x);
  });
  EXPECT_LE(peak([&] { recompute(net, x); }), without + static_cast<int64_t>(random_state().nbytes()));
}

TEST(RecomputeMemory, ALongChainPeaksFarLowerInSegments) {
  constexpr int kLayers = 64, kSegments = 8;
  const auto layer = [](const at::Tensor& t) { return t.sin(); };  // keeps its input
  const auto peak = [&](bool recomputed) {
    auto x = torch::randn({1000}).set_requires_grad(true);
    Meter meter;
    at::Tensor y = x;
    for (int s = 0; s < kSegments; ++s) {
      y = segment(
          recomputed,
          [&](at::Tensor t) {
            for (int i = 0; i < kLayers / kSegments; ++i) t = layer(t);
            return t;
          },
          y);
    }
    y.sum().backward();
    return (meter.peak_bytes() - meter.base_bytes()) / 4000;
  };
  EXPECT_GE(peak(false), kLayers);
  // The segments' inputs, the tensors of the one run again, and a few for gradients and the generator's
  // state.
  EXPECT_LE(peak(true), kSegments + kLayers / kSegments + 6);
}

TEST(RecomputeMemory, AThousandStepsLeaveNothingBehind) {
  // Tensors this small take longer to share among threads than to compute, far longer on a busy machine.
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  auto net = four_convolutions();
  auto x = torch::randn({2, 8, 4, 4}).set_requires_grad(true);
  const auto nested = [net](const at::Tensor& t) {
    return recompute([net](const at::Tensor& u) mutable { return net->forward(u); },
                     torch::dropout(t, 0.1, true))
        .sin();
  };
  int64_t start = 0;
  for (int step = 0; step < 1001; ++step) {
    const auto y = recompute(nested, x);
    switch (step % 5) {
      case 0:
        y.sum().backward();
        break;
      case 1:  // no backward at all
        break;
      case 2:  // twice
        y.sum().backward({}, /*retain_graph=*/true);
        y.sum().backward();
        break;
      case 3:  // through a part of the graph
        torch::autograd::grad({y.sum()}, {net->parameters().back()});
        break;
      case 4: {  // an error on the way
        const auto hidden = x * 1;
        const auto z = recompute(nested, hidden);
        hidden.add_(1);
        EXPECT_THROW(z.sum().backward(), Error);
        EXPECT_THROW(recompute([](at::Tensor t) { return t.mul_(2).exp(); }, x * 1), Error);
        break;
      }
    }
    // The gradients are there from now on, and y is here in both; the last step is of the kind of the first.
    if (step == 0) start = memory_stats().current_bytes;
    if (step == 1000) {
      EXPECT_EQ(memory_stats().current_bytes, start);
    }
  }
  at::set_num_threads(threads);
}

TEST(RecomputeMemory, WhatABackwardDoesNotAskForGoesWhenItEnds) {
  auto x = torch::randn({1000}).set_requires_grad(true), w = torch::randn({1000}).set_requires_grad(true);
  const auto y = recompute([&](const at::Tensor& t) { return (t.sin().sin().sin() + w.exp()).cos(); }, x);
  const auto loss = y.sum();
  const int64_t before = memory_stats().current_bytes;
  torch::autograd::grad({loss}, {w}, {}, /*retain_graph=*/true);  // leaves the inputs of three sines unused
  EXPECT_EQ(memory_stats().current_bytes, before);
}

TEST(RecomputeMemory, WhatABackwardHeldGoesWhenItFails) {
  auto x = torch::randn({1000}).set_requires_grad(true);
  bool fails = true;
  const auto y = recompute(
      [&](const at::Tensor& t) {
        const auto middle = t.sin().sin();
        if (middle.requires_grad())
          middle.register_hook([&](const at::Tensor& gradient) {
            if (fails) throw std::runtime_error("a hook of the user's");
            return gradient;
          });
        return middle.sin().sin();
      },
      x);
  const auto loss = y.sum();
  const int64_t before = memory_stats().current_bytes;
  EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), std::runtime_error);
  EXPECT_EQ(memory_stats().current_bytes, before);
  fails = false;
  loss.backward();
  EXPECT_TRUE(
      torch::allclose(x.grad(), x.cos() * x.sin().cos() * x.sin().sin().cos() * x.sin().sin().sin().cos()));
}

}  // namespace
}  // namespace palimpsest::memory
