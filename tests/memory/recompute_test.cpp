#include "palimpsest/memory/recompute.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/inplace_abn.h"
#include "tests/memory/recompute_support.h"

#include <ATen/autocast_mode.h>

namespace palimpsest::memory {
namespace {

using namespace palimpsest::memory::testing;  // NOLINT(google-build-using-namespace)

/// Two training steps of a chain of segments; the second one sees whether the first left the right state.
Tensors two_steps(bool recomputed, const std::vector<torch::nn::Sequential>& segments,
                  const at::Tensor& images) {
  auto x = images.clone().set_requires_grad(true);
  Tensors results;
  for (int step = 0; step < 2; ++step) {
    at::Tensor y = x;
    for (const auto& net : segments) y = segment(recomputed, net, y, {.buffers = net->buffers()});
    (y * y).sum().backward();
    results.push_back(y.detach().clone());
  }
  results.push_back(x.grad());
  for (const auto& net : segments) {
    const auto rest = left_behind(*net);
    results.insert(results.end(), rest.begin(), rest.end());
  }
  return results;
}

TEST(Recompute, LibtorchsLayersGiveTheBytesOfThePlainRun) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    expect_same_as_plain([&](bool recomputed) {
      namespace n = torch::nn;
      n::Sequential first(conv(3, 8), n::BatchNorm2d(8), n::ReLU(n::ReLUOptions(true)), conv(8, 8));
      n::Sequential second(n::Dropout(0.3), n::BatchNorm2d(n::BatchNorm2dOptions(8).momentum(std::nullopt)),
                           n::ELU(), n::MaxPool2d(2));
      n::Sequential third(conv(8, 16), n::Dropout2d(0.5), n::GroupNorm(4, 16), n::GELU());
      n::Sequential last(n::AdaptiveAvgPool2d(1), n::Flatten(), n::Linear(16, 5), n::LogSoftmax(1));
      return two_steps(recomputed, {first, second, third, last},
                       torch::randn({4, 3, 12, 12}).contiguous(format));
    });
  }
}

TEST(Recompute, OurLayersGiveTheBytesOfThePlainRunWithoutAListOfBuffers) {
  for (const auto strategy : {nn::Strategy::kStandard, nn::Strategy::kInplace2}) {
    for (const bool in_place : {true, false}) {
      expect_same_as_plain([&](bool recomputed) {
        auto first = conv(3, 8), second = conv(8, 8);
        nn::Norm norm(8, nn::NormOptions{strategy, nn::Activation::kELU, 1.0, in_place});
        nn::InPlaceABN abn(nn::InPlaceABNOptions(8).momentum(std::nullopt).in_place(in_place));
        torch::nn::Sequential net(first, norm, second, abn);
        auto x = torch::randn({4, 3, 9, 9}).set_requires_grad(true);
        for (int step = 0; step < 3; ++step) segment(recomputed, net, x).sin().sum().backward();
        auto all = left_behind(*net);
        all.push_back(x.grad());
        EXPECT_EQ(abn->num_batches_tracked.item<int64_t>(), 3);
        EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 3);
        return all;
      });
    }
  }
}

TEST(Recompute, AResidualBlockWithOurEndGivesTheBytesOfThePlainRun) {
  expect_same_as_plain([](bool recomputed) {
    auto first = conv(8, 8);
    nn::Norm norm(8);
    auto x = torch::randn({2, 8, 9, 9}).set_requires_grad(true);
    segment(
        recomputed, [=](const at::Tensor& t) mutable { return norm->forward_residual(first->forward(t), t); },
        x)
        .sin()
        .sum()
        .backward();
    return Tensors{x.grad(), first->weight.grad(), norm->weight.grad(), norm->bias.grad(), norm->running_var};
  });
}

TEST(Recompute, FrozenNormalizationGivesTheBytesOfThePlainRun) {
  expect_same_as_plain([](bool recomputed) {
    torch::nn::Sequential net(conv(3, 8), torch::nn::BatchNorm2d(8), conv(8, 8),
                              nn::Norm(8, nn::NormOptions{nn::Strategy::kStandard}), conv(8, 8),
                              nn::InPlaceABN(8));
    net->eval();
    auto x = torch::randn({2, 3, 9, 9}).set_requires_grad(true);
    segment(recomputed, net, x).sin().sum().backward();
    auto all = left_behind(*net);
    all.push_back(x.grad());
    return all;
  });
}

TEST(Recompute, ABatchNormalizationThatIsNotListedCountsTwice) {
  // The reason for the list: with it left out the layer has seen two batches.
  torch::nn::BatchNorm2d norm(3);
  const auto x = torch::randn({2, 3, 4, 4});
  recompute(norm, x).sin().sum().backward();
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 2);
  recompute(norm, x, {.buffers = norm->buffers()}).sin().sum().backward();
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 3);
}

TEST(Recompute, ParametersGetTheirGradientsWhereNoInputRequiresOne) {
  expect_same_as_plain([](bool recomputed) {
    torch::nn::Sequential net(conv(3, 4), torch::nn::Sigmoid(), conv(4, 4));
    segment(recomputed, net, torch::randn({2, 3, 5, 5})).sin().sum().backward();
    return left_behind(*net);
  });
}

TEST(Recompute, ATensorFromOutsideThatIsNoInputGetsItsGradient) {
  expect_same_as_plain([](bool recomputed) {
    auto scale = torch::rand({4}).set_requires_grad(true);
    const auto gate = scale.exp();  // of the graph before the segment
    auto x = torch::randn({3, 4}).set_requires_grad(true);
    segment(
        recomputed, [gate](const at::Tensor& t) { return (t.sigmoid() * gate).tanh(); }, x)
        .sum()
        .backward();
    return Tensors{scale.grad(), x.grad()};
  });
}

TEST(Recompute, ManyInputsAndOutputsPassAndUnusedOnesHaveNoPart) {
  expect_same_as_plain([](bool recomputed) {
    auto a = torch::randn({3, 4}).set_requires_grad(true), b = torch::randn({3, 4});
    auto c = torch::randn({4}).set_requires_grad(true);
    const auto fn = [](const at::Tensor& s, const at::Tensor& t, const at::Tensor& u) {
      return Tensors{(s * t).sigmoid(), t.argmax(1), at::Tensor(), (s * u).exp(), s};
    };
    const Tensors y = recomputed ? recompute(fn, a, b, c) : fn(a, b, c);
    EXPECT_FALSE(y[1].requires_grad());
    EXPECT_FALSE(y[2].defined());
    EXPECT_TRUE(y[4].is_same(a));
    (y[0].sum() + y[1].sum()).backward();  // y[3]'s gradient is undefined
    EXPECT_FALSE(c.grad().defined());
    return Tensors{y[0], y[1], y[3], a.grad()};
  });
}

TEST(Recompute, AListOfInputsIsHandedOverAsAList) {
  auto a = torch::ones({2}).set_requires_grad(true), b = torch::full({2}, 3.0);
  const Tensors inputs{a, b, at::Tensor()};
  const auto y = recompute(
      [](const Tensors& x) {
        EXPECT_FALSE(x[2].defined());
        return (x[0] * x[1]).exp();
      },
      inputs);
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(a.grad(), torch::full({2}, 3 * std::exp(3.0))));
}

TEST(Recompute, OptionsFollowOneToThreeTensorsOrAList) {
  auto x = torch::ones({1000}).set_requires_grad(true);
  const RecomputeOptions afresh{.replay_random_numbers = false};
  const auto drop = [](const at::Tensor& t) { return torch::dropout(t, 0.5, true); };
  const auto drop2 = [=](const at::Tensor& t, const at::Tensor& u) { return drop(t * u); };
  const auto drop3 = [=](const at::Tensor& t, const at::Tensor& u, const at::Tensor& v) {
    return drop2(t * u, v);
  };
  const auto drop_list = [=](const Tensors& list) { return drop2(list[0], list[1]); };
  for (const auto& y :
       {recompute(drop, x, afresh), recompute(drop2, x, x, {.replay_random_numbers = false}),
        recompute(drop3, x, x, x, {.replay_random_numbers = false}), recompute(drop_list, {x, x}, afresh)}) {
    x.mutable_grad().reset();
    y.sum().backward();
    EXPECT_FALSE(torch::equal(x.grad() != 0, y != 0)) << "the second run drew its own numbers";
  }
}

TEST(Recompute, WithoutAGradientToTakeItIsTheFunctionAlone) {
  int runs = 0;
  const auto fn = [&](const at::Tensor& t) { return ++runs, t.exp(); };
  auto x = torch::ones({2}).set_requires_grad(true);
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(recompute(fn, x).requires_grad());
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(recompute(fn, torch::ones({2})).is_inference());
  }
  EXPECT_FALSE(recompute(fn, torch::ones({2})).requires_grad());
  EXPECT_EQ(runs, 3);
}

TEST(Recompute, RandomNumbersAreReplayedAndTheGeneratorGoesOnWhereItWas) {
  auto x = torch::ones({1000}).set_requires_grad(true);
  const auto y = recompute([](const at::Tensor& t) { return torch::dropout(t.exp(), 0.5, true); }, x);
  torch::rand({7});
  const auto before = random_state();
  y.sum().backward();
  EXPECT_TRUE(same_bytes(random_state(), before));
  EXPECT_TRUE(torch::equal(x.grad() != 0, y != 0));
}

TEST(Recompute, RandomNumbersMayBeLeftToTheirCourse) {
  auto x = torch::ones({1000}).set_requires_grad(true);
  const auto y = recompute([](const at::Tensor& t) { return torch::dropout(t.exp(), 0.5, true); }, x,
                           {.replay_random_numbers = false});
  y.sum().backward();
  EXPECT_FALSE(torch::equal(x.grad() != 0, y != 0));
}

/// Autocast to bf16 on the CPU, as C++ has no guard for it.
struct Autocast {
  Autocast() {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

TEST(Recompute, AutocastIsReplayedAndBackwardMayRunOutsideIt) {
  expect_same_as_plain([](bool recomputed) {
    torch::nn::Sequential net(conv(3, 8), torch::nn::ReLU(), conv(8, 8), torch::nn::Sigmoid());
    auto x = torch::randn({2, 3, 8, 8}).set_requires_grad(true);
    at::Tensor loss;
    for (int step = 0; step < 2; ++step) {
      {
        const Autocast autocast;
        const auto y = segment(recomputed, net, x);
        EXPECT_EQ(y.scalar_type(), at::kBFloat16);
        loss = y.to(at::kFloat).sin().sum();
      }
      loss.backward();
      EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
      // An optimizer's step: a stale copy of the weights in autocast's cache would show in the next round.
      const torch::NoGradGuard no_grad;
      for (auto& p : net->parameters()) p.sub_(p.grad(), 0.1);
    }
    auto all = left_behind(*net);
    all.push_back(x.grad());
    all.push_back(loss);
    return all;
  });
}

TEST(Recompute, AutocastThatWasOffIsOffInTheSecondRunToo) {
  torch::nn::Linear linear(4, 4);
  std::vector<at::ScalarType> dtypes;
  const auto y = recompute(
      [&, linear](const at::Tensor& t) mutable {
        const auto z = linear->forward(t).exp();
        dtypes.push_back(z.scalar_type());
        return z;
      },
      torch::ones({2, 4}));
  {
    const Autocast autocast;
    y.sum().backward();
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  }
  EXPECT_EQ(dtypes, (std::vector{at::kFloat, at::kFloat}));
}

TEST(Recompute, TheFlagIsUpInTheSecondRunOnly) {
  std::vector<bool> flags;
  auto x = torch::ones({2}).set_requires_grad(true);
  const auto y = recompute(
      [&](const at::Tensor& t) {
        flags.push_back(recomputing());
        return t.exp();
      },
      x);
  y.sum().backward();
  EXPECT_EQ(flags, (std::vector{false, true}));
  EXPECT_FALSE(recomputing());
}

TEST(Recompute, InPlaceOperationsWithinASegmentGiveTheBytesOfThePlainRun) {
  expect_same_as_plain([](bool recomputed) {
    auto x = torch::randn({3, 8}).set_requires_grad(true);
    segment(
        recomputed,
        [](const at::Tensor& t) {
          auto y = t * 2;
          y.narrow(1, 0, 4).mul_(3);
          y.sigmoid_();
          auto parts = (y * t).chunk(2, 1);
          auto both = at::cat({parts[0].tanh(), parts[1]}, 0);
          return at::leaky_relu_(both, 0.1);
        },
        x)
        .sin()
        .sum()
        .backward();
    return Tensors{x.grad()};
  });
}

TEST(Recompute, AnOutputMayBeWrittenOverAfterwards) {
  // Plainly this is an error, as exp's result is wanted in backward; the second run makes it anew.
  auto x = torch::ones({2}).set_requires_grad(true);
  auto y = recompute([](const at::Tensor& t) { return t.exp(); }, x);
  y.mul_(2).sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), torch::full({2}, 2 * std::exp(1.0))));
}

}  // namespace
}  // namespace palimpsest::memory
