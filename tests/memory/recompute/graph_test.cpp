#include "palimpsest/memory/recompute.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/base/segment_log.h"
#include "palimpsest/nn/inplace_abn.h"
#include "tests/memory/recompute_support.h"
#include "tests/support/error_of.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>

#include <thread>

/// Segments in libtorch's graph: nested, shared, differentiated twice, in part, or on another thread.
namespace palimpsest::memory {
namespace {

using namespace palimpsest::memory::testing;  // NOLINT(google-build-using-namespace)

TEST(RecomputeGraph, NestedSegmentsGiveTheBytesOfThePlainRun) {
  expect_same_as_plain([](bool recomputed) {
    namespace n = torch::nn;
    n::Sequential inner(conv(4, 4), nn::InPlaceABN(4), n::Dropout(0.3)), middle(n::BatchNorm2d(4), n::Tanh());
    auto first = conv(3, 4);
    const auto in_segment = [=](const auto& module, const at::Tensor& t) {
      return segment(recomputed, module, t, {.buffers = module->buffers()});
    };
    const auto outer = [=](const at::Tensor& t) mutable {
      const auto twice = [=](const at::Tensor& u) { return in_segment(inner, in_segment(middle, u)).exp(); };
      return segment(recomputed, twice, torch::dropout(first->forward(t).sigmoid(), 0.2, true)).sin();
    };
    auto x = torch::randn({2, 3, 6, 6}).set_requires_grad(true);
    // Inner and middle list their own buffers only: the outer two leave that to them.
    for (int step = 0; step < 2; ++step) segment(recomputed, outer, x).cos().sum().backward();
    Tensors all{x.grad(), first->weight.grad()};
    for (const auto& module : {inner, middle}) {
      const auto more = left_behind(*module);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  });
}

TEST(RecomputeGraph, ANestedSegmentRunsOnceMoreForEachLevel) {
  int outer_runs = 0, inner_runs = 0;
  const auto inner = [&](const at::Tensor& t) { return ++inner_runs, t.exp().sin(); };
  const auto outer = [&](const at::Tensor& t) { return ++outer_runs, recompute(inner, t.sigmoid()).exp(); };
  auto x = torch::ones({2}).set_requires_grad(true);
  const auto y = recompute(outer, x);
  EXPECT_EQ(std::pair(outer_runs, inner_runs), std::pair(1, 1));
  y.sum().backward();
  EXPECT_EQ(std::pair(outer_runs, inner_runs), std::pair(2, 3));
}

TEST(RecomputeGraph, DeepNestingHasNoLimitOfItsOwn) {
  // libtorch's engine moves backward in backward to another thread from the 60th on; here there is none.
  std::function<at::Tensor(const at::Tensor&, int)> nest = [&](const at::Tensor& t, int depth) -> at::Tensor {
    if (depth == 0) return t.sin();
    return recompute([&nest, depth](const at::Tensor& u) { return nest(u, depth - 1); }, t);
  };
  auto x = torch::ones({2}).set_requires_grad(true);
  nest(x, 100).sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), torch::ones({2}).cos()));
}

TEST(RecomputeGraph, AChainOfSegmentsHasNoLimitEither) {
  auto x = torch::ones({2}).set_requires_grad(true);
  at::Tensor y = x;
  for (int i = 0; i < 2000; ++i) y = recompute([](const at::Tensor& t) { return t.sin(); }, y);
  y.sum().backward();
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
}

TEST(RecomputeGraph, AParameterSharedByTwoSegmentsAddsUpInThePlainOrder) {
  expect_same_as_plain([](bool recomputed) {
    torch::nn::Linear shared(16, 16);
    auto x = torch::randn({8, 16}).set_requires_grad(true);
    const auto fn = [shared](const at::Tensor& t) mutable { return shared->forward(t).tanh(); };
    for (int step = 0; step < 3; ++step) {  // onto the gradients that are there
      auto y = segment(recomputed, fn, segment(recomputed, fn, segment(recomputed, fn, x)));
      (y * shared->bias).sum().backward();
    }
    return Tensors{x.grad(), shared->weight.grad(), shared->bias.grad()};
  });
}

TEST(RecomputeGraph, ARetainedGraphIsRunAgainForEachBackward) {
  int runs = 0;
  expect_same_as_plain([&](bool recomputed) {
    torch::nn::Sequential net(conv(3, 4), torch::nn::Dropout(0.5), conv(4, 4), torch::nn::Sigmoid());
    auto x = torch::randn({2, 3, 5, 5}).set_requires_grad(true);
    runs = 0;
    const auto loss =
        segment(
            recomputed, [&, net](const at::Tensor& t) mutable { return ++runs, net->forward(t); }, x)
            .sin()
            .sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    EXPECT_THROW(loss.backward(), c10::Error);  // libtorch's own: a second time without retain_graph
    auto all = left_behind(*net);
    all.push_back(x.grad());
    return all;
  });
  EXPECT_EQ(runs, 4);
}

TEST(RecomputeGraph, GradientsOfChosenTensorsComeWithoutTouchingTheOthers) {
  expect_same_as_plain([](bool recomputed) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Tanh(), torch::nn::Linear(4, 4));
    auto x = torch::randn({2, 4}).set_requires_grad(true);
    const auto hidden = x.exp();
    const auto loss = segment(recomputed, net, hidden).sin().sum();
    const auto of_inputs = torch::autograd::grad({loss}, {x, hidden}, {}, /*retain_graph=*/true);
    const auto of_weight = torch::autograd::grad({loss}, {net->parameters()[2]}, {}, /*retain_graph=*/true);
    EXPECT_FALSE(x.grad().defined());
    for (const auto& p : net->parameters()) EXPECT_FALSE(p.grad().defined());
    return Tensors{of_inputs[0], of_inputs[1], of_weight[0], torch::autograd::grad({loss}, {hidden})[0]};
  });
}

TEST(RecomputeGraph, DoubleBackwardGivesTheBytesOfThePlainRun) {
  expect_same_as_plain([](bool recomputed) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Tanh(), torch::nn::Linear(4, 4),
                              torch::nn::Sigmoid());
    auto x = torch::randn({2, 4}).set_requires_grad(true);
    const auto loss = segment(recomputed, net, x).exp().sum();
    const auto g = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    (g * g).sum().backward();
    auto all = left_behind(*net);
    all.push_back(x.grad());
    return all;
  });
}

TEST(RecomputeGraph, OurLayerRefusesDoubleBackwardWithinASegmentToo) {
  nn::InPlaceABN abn(nn::InPlaceABNOptions(3).in_place(false));
  auto x = torch::randn({2, 3, 4, 4}).set_requires_grad(true);
  const auto loss = recompute(abn, x).sin().sum();
  const std::string error = palimpsest::testing::error_of(
      [&] { torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true); });
  EXPECT_TRUE(contains(error, "no double backward")) << error;
}

TEST(RecomputeGraph, AFunctionMayDifferentiateWithin) {
  expect_same_as_plain([](bool recomputed) {
    auto x = torch::rand({5}).set_requires_grad(true);
    const auto slope = [](const at::Tensor& t) {
      return torch::autograd::grad({(t * t).sin().sum()}, {t}, {}, true, /*create_graph=*/true)[0];
    };
    segment(recomputed, [&](const at::Tensor& t) { return slope(t).exp(); }, x).sum().backward();
    return Tensors{x.grad()};
  });
}

TEST(RecomputeGraph, AFunctionMayAskItsGroupBehindAPassWithin) {
  int asked = 0;
  const auto ask = [&] { return SegmentLog::get([&] { return ++asked; }); };
  expect_same_as_plain([&](bool recomputed) {
    asked = 0;
    auto x = torch::rand({5}).set_requires_grad(true);
    const auto fn = [&](const at::Tensor& t) {
      const at::Tensor scaled = (t * ask()).sin();
      const auto slope =
          torch::autograd::grad({(scaled * scaled).sum()}, {t}, {}, true, /*create_graph=*/true)[0];
      return slope.exp() * ask();
    };
    segment(recomputed, fn, x).sum().backward();
    EXPECT_EQ(asked, 2);
    return Tensors{x.grad()};
  });
}

TEST(RecomputeGraph, AFunctionMayDifferentiateWithinTwice) {
  expect_same_as_plain([](bool recomputed) {
    auto x = torch::rand({5}).set_requires_grad(true);
    const auto curvature = [](const at::Tensor& t) {
      const auto y = (t * t).sin().sum();
      const auto slope = torch::autograd::grad({y}, {t}, {}, true, /*create_graph=*/true)[0];
      return torch::autograd::grad({slope.sum()}, {t}, {}, true, /*create_graph=*/true)[0];
    };
    at::Tensor sum;
    for (int i = 0; i < 80; ++i) {  // more than libtorch nests passes on one thread
      const auto y = segment(recomputed, curvature, x).exp().sum();
      sum = sum.defined() ? sum + y : y;
    }
    sum.backward();
    return Tensors{x.grad()};
  });
}

/// Counts how often a node was run.
struct Counter : torch::autograd::FunctionPostHook {
  explicit Counter(int& count) : count_(count) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    ++count_;
    return outputs;
  }
  int& count_;
};

TEST(RecomputeGraph, HooksOnAParameterAndItsAccumulationRunOncePerBackward) {
  torch::nn::Linear shared(4, 4);
  int on_gradient = 0, accumulated = 0;
  shared->weight.register_hook([&](const at::Tensor& g) {
    ++on_gradient;
    return g * 2;
  });
  const auto accumulator = torch::autograd::impl::grad_accumulator(shared->weight);  // as a reducer does it
  accumulator->add_post_hook(std::make_unique<Counter>(accumulated));
  const auto step = [&](bool recomputed) {
    const auto y = segment(recomputed, shared, segment(recomputed, shared, torch::ones({3, 4})));
    shared->zero_grad();
    y.sin().sum().backward();
    return shared->weight.grad().clone();
  };
  const auto want = step(false);
  EXPECT_EQ(std::pair(on_gradient, accumulated), std::pair(1, 1));
  EXPECT_TRUE(same_bytes(step(true), want));
  EXPECT_EQ(std::pair(on_gradient, accumulated), std::pair(2, 2));
}

TEST(RecomputeGraph, AHookOnATensorInsideSeesTheGradientOnce) {
  int calls = 0;
  auto x = torch::ones({2}).set_requires_grad(true);
  const auto y = recompute(
      [&](const at::Tensor& t) {
        auto hidden = t.exp();
        hidden.register_hook([&](const at::Tensor& g) { return ++calls, g * 3; });
        return hidden.sin();
      },
      x);
  y.sum().backward();
  EXPECT_EQ(calls, 1);
  const auto e = torch::ones({2}).exp();
  EXPECT_TRUE(torch::allclose(x.grad(), 3 * e.cos() * e));
}

TEST(RecomputeGraph, AnotherEngineMayTakeTheFirstPlace) {
  int runs = 0;
  const auto fn = [&](const at::Tensor& t) { return ++runs, t.exp(); };
  auto x = torch::ones({2}).set_requires_grad(true);
  const auto before = recompute(fn, x);
  // Python's engine does the same when it is loaded into a program.
  torch::autograd::set_default_engine_stub(torch::autograd::Engine::get_base_engine);
  const auto after = recompute(fn, x);
  EXPECT_EQ(runs, 2);
  (before + after).sum().backward();
  EXPECT_EQ(runs, 4);
  EXPECT_TRUE(torch::allclose(x.grad(), 2 * x.exp()));
}

TEST(RecomputeGraph, BackwardMayRunOnAnotherThread) {
  expect_same_as_plain([](bool recomputed) {
    torch::nn::Sequential net(conv(3, 4), nn::InPlaceABN(4), torch::nn::Dropout(0.5), conv(4, 4));
    auto x = torch::randn({2, 3, 5, 5}).set_requires_grad(true);
    std::vector<bool> flags;
    const auto fn = [&, net](const at::Tensor& t) mutable {
      flags.push_back(recomputing());
      return net->forward(t);
    };
    const auto loss = segment(recomputed, fn, x).sin().sum();
    std::thread([&] {
      loss.backward();
      EXPECT_FALSE(recomputing());
    }).join();
    EXPECT_EQ(flags, recomputed ? (std::vector{false, true}) : std::vector{false});
    auto all = left_behind(*net);
    all.push_back(x.grad());
    return all;
  });
}

TEST(RecomputeGraph, ThreadsWithGraphsOfTheirOwnDoNotMeet) {
  // No random numbers: their generator is one for all threads.
  torch::manual_seed(3);
  torch::nn::Sequential net(conv(3, 4), torch::nn::Tanh(), conv(4, 4));
  const auto images = torch::randn({4, 2, 3, 8, 8});
  const auto gradient = [&](bool recomputed, int i) {
    auto x = images[i].clone().set_requires_grad(true);
    return torch::autograd::grad({segment(recomputed, net, x).sin().sum()}, {x})[0];
  };
  Tensors got(4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) got[static_cast<std::size_t>(i)] = gradient(true, i);
    });
  }
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(same_bytes(got[static_cast<std::size_t>(i)], gradient(false, i))) << i;
}

}  // namespace
}  // namespace palimpsest::memory
