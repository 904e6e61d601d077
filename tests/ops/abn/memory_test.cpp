#include "tests/ops/abn_case.h"

#include "palimpsest/memory/counting_allocator.h"

#include <gtest/gtest.h>

namespace palimpsest::ops::tests {
namespace {

using memory::memory_stats;

int64_t live() {
  return memory_stats().current_bytes;
}

/// A non-leaf that nothing else keeps: its maker, an addition, saves neither operand.
at::Tensor non_leaf(const at::Tensor& leaf) {
  return leaf + 0.0;
}

TEST(AbnMemory, InPlaceReturnsTheInputItself) {
  const at::Tensor x = non_leaf(torch::randn({2, 8, 4, 4}).set_requires_grad(true));
  void* const address = x.data_ptr();
  const at::Tensor z = abn_(x, {});
  EXPECT_TRUE(z.is_same(x));
  EXPECT_EQ(z.data_ptr(), address);
}

TEST(AbnMemory, InPlaceKeepsNothingButOneVectorMore) {
  for (const bool training : {true, false}) {
    const at::Tensor leaf = torch::randn({2, 64, 32, 32}).set_requires_grad(true);
    const at::Tensor weight = torch::ones(64).set_requires_grad(true),
                     bias = torch::zeros(64).set_requires_grad(true);
    const at::Tensor mean = torch::zeros(64), var = torch::ones(64);
    const at::Tensor x = non_leaf(leaf);
    memory::reset_peak();
    const int64_t before = live();
    AbnOptions options;
    options.training = training;
    const at::Tensor z = abn_(x, {weight, bias, mean, var}, options);
    EXPECT_EQ(live() - before, 64 * 8) << "inv_std, and no tensor beside x";
    EXPECT_LT(memory_stats().peak_bytes - before, 8 * 1024) << "per-channel vectors only, at any time";
  }
}

TEST(AbnMemory, ABitAnElementIsAllThatABranchCosts) {
  const at::Tensor leaf = torch::randn({2, 64, 32, 32}).set_requires_grad(true);
  const at::Tensor weight = torch::ones(64).set_requires_grad(true);
  const at::Tensor x = non_leaf(leaf);
  const int64_t bytes = x.numel() * 4, before = live();
  const AbnOptions options = options_with(Saved::kOutputBit);
  const at::Tensor z = abn_(x, {weight}, options);
  EXPECT_EQ(live() - before, bytes / 32 + 3 + 64 * 8) << "the bits, room to read the last ones, inv_std";
  const at::Tensor y = at::batch_norm(leaf, weight, {}, {}, {}, true, 0.1, 1e-5, false);
  EXPECT_LE(relative_error(torch::autograd::grad({z.sum()}, {weight})[0],
                           torch::autograd::grad({at::gelu(y).sum()}, {weight})[0]),
            testing::kReducedF32);
}

TEST(AbnMemory, OutOfPlaceKeepsTheOutputAndOneVector) {
  const at::Tensor leaf = torch::randn({2, 64, 32, 32}).set_requires_grad(true);
  const at::Tensor weight = torch::ones(64).set_requires_grad(true);
  at::Tensor x = non_leaf(leaf);
  const int64_t bytes = x.numel() * 4, before = live();
  const at::Tensor z = abn(x, {weight});
  EXPECT_EQ(live() - before, bytes + 64 * 8);
  x.reset();
  EXPECT_EQ(live() - before, 64 * 8) << "x is not kept";
}

TEST(AbnMemory, BehindAConvolutionTheGradientIsWrittenOver) {
  for (const bool in_place : {false, true}) {
    const at::Tensor leaf = torch::randn({2, 16, 24, 24}).set_requires_grad(true);
    const at::Tensor weight = torch::rand(16).add(0.5).set_requires_grad(true);
    const at::Tensor kernel = torch::randn({16, 16, 3, 3}).mul(0.1).set_requires_grad(true);
    const at::Tensor x = non_leaf(leaf);
    const void *incoming = nullptr, *outgoing = nullptr;
    x.register_hook([&](const at::Tensor& dx) { outgoing = dx.data_ptr(); });
    at::Tensor z = in_place ? abn_(x, {weight}) : abn(x, {weight});
    z.register_hook([&](const at::Tensor& dz) { incoming = dz.data_ptr(); });
    const at::Tensor loss = at::conv2d(z, kernel, {}, 1, 1).square().mean();
    const auto gradients = torch::autograd::grad({loss}, {leaf, weight});
    EXPECT_NE(incoming, nullptr);
    if (!in_place) {
      EXPECT_EQ(incoming, outgoing);  // in place, x's hook went with x's old value
    }

    const at::Tensor leaf64 = leaf.detach().to(at::kDouble).set_requires_grad(true);
    const at::Tensor weight64 = weight.detach().to(at::kDouble).set_requires_grad(true);
    const at::Tensor y = at::batch_norm(leaf64, weight64, {}, {}, {}, true, 0.1, 1e-5, false);
    const at::Tensor want =
        at::conv2d(at::leaky_relu(y, 0.01), kernel.to(at::kDouble), {}, 1, 1).square().mean();
    const auto truth = torch::autograd::grad({want}, {leaf64, weight64});
    EXPECT_LE(relative_error(gradients[0], truth[0]), tolerance_across_kinks(at::kFloat));
    EXPECT_LE(relative_error(gradients[1], truth[1]), tolerance_across_kinks(at::kFloat));
  }
}

TEST(AbnMemory, AGradientThatOthersSeeIsNotWrittenOver) {
  AbnCase c = make_case({2, 6, 5, 5}, at::kFloat);
  const at::Tensor want = run_layer(c, false).dx;
  for (const bool in_place : {false, true}) {
    const auto layer = [&](at::Tensor x) {
      return in_place ? abn_(x, {c.weight, c.bias}) : abn(x, {c.weight, c.bias});
    };
    {  // the caller's own tensor
      const at::Tensor leaf = c.base.clone().set_requires_grad(true), dz = c.dz.clone();
      EXPECT_TRUE(torch::autograd::grad({layer(non_leaf(leaf))}, {leaf}, {dz})[0].equal(want));
      EXPECT_TRUE(dz.equal(c.dz));
    }
    {  // a retained gradient
      const at::Tensor leaf = c.base.clone().set_requires_grad(true);
      const at::Tensor z = layer(non_leaf(leaf));
      z.retain_grad();
      (z * c.dz).sum().backward();
      EXPECT_TRUE(leaf.grad().equal(want));
      EXPECT_TRUE(z.grad().equal(c.dz));
    }
    {  // the shortcut of a residual block
      const at::Tensor leaf = c.base.clone().set_requires_grad(true);
      const at::Tensor shortcut = torch::randn_like(c.base).set_requires_grad(true);
      ((layer(non_leaf(leaf)) + shortcut) * c.dz).sum().backward();
      EXPECT_TRUE(leaf.grad().equal(want));
      EXPECT_TRUE(shortcut.grad().equal(c.dz));
    }
    {  // a view of the gradient, kept by a hook
      const at::Tensor leaf = c.base.clone().set_requires_grad(true);
      const at::Tensor z = layer(non_leaf(leaf));
      at::Tensor kept;
      z.register_hook([&](const at::Tensor& dz) { kept = dz.select(0, 1); });
      (z * c.dz).sum().backward();
      EXPECT_TRUE(leaf.grad().equal(want));
      EXPECT_TRUE(kept.equal(c.dz.select(0, 1)));
    }
  }
}

TEST(AbnMemory, ARetainedGraphGivesTheSameGradientsTwice) {
  for (const bool in_place : {false, true}) {
    const at::Tensor leaf = torch::randn({2, 8, 12, 12}).set_requires_grad(true);
    const at::Tensor kernel = torch::randn({4, 8, 3, 3});
    const at::Tensor x = non_leaf(leaf);
    const at::Tensor z = in_place ? abn_(x, {}) : abn(x, {});
    const at::Tensor loss = at::conv2d(z, kernel).square().sum();
    const at::Tensor first = torch::autograd::grad({loss}, {leaf}, {}, /*retain_graph=*/true)[0].clone();
    EXPECT_TRUE(torch::autograd::grad({loss}, {leaf})[0].equal(first));
  }
}

TEST(AbnMemory, AThousandForwardPassesWithoutBackwardLeaveNothingBehind) {
  const at::Tensor leaf = torch::randn({2, 8, 8, 8}).set_requires_grad(true);
  const at::Tensor weight = torch::ones(8).set_requires_grad(true);
  const at::Tensor zeros = torch::zeros(8).set_requires_grad(true);
  const auto pass = [&](int form) {
    at::Tensor x = non_leaf(leaf);
    if (form == 1) x = x.slice(1, 0, 8).view({2, 8, 64});  // a view's base must not be held either
    if (form >= 4) {
      const AbnOptions options = options_with(Saved::kOutputBit);
      if (form == 4) abn(x, {weight}, options);
      if (form == 5) abn_(x, {weight}, options);
    } else if (form == 2) {
      abn(x, {weight});
    } else {
      abn_(x, {form == 3 ? zeros : weight});
    }
  };
  for (int form = 0; form < 6; ++form) {
    pass(form);
    const int64_t before = live();
    for (int i = 0; i < 1000; ++i) pass(form);
    EXPECT_EQ(live(), before) << "form " << form;
  }
}

TEST(AbnMemory, OnlyTheGradientsAskedForAreComputed) {
  for (const bool training : {true, false}) {
    for (int wanted = 1; wanted < 8; ++wanted) {
      AbnCase c = make_case({3, 6, 5, 5}, at::kDouble);
      c.options.training = training;
      const Outcome all = run_layer(c, false);
      const at::Tensor x = c.base.clone().set_requires_grad(wanted & 1);
      const at::Tensor weight = c.weight->detach().clone().set_requires_grad(wanted & 2);
      const at::Tensor bias = c.bias->detach().clone().set_requires_grad(wanted & 4);
      const at::Tensor mean = c.running_mean->clone(), var = c.running_var->clone();
      abn(x, {weight, bias, mean, var}, c.options).backward(c.dz);
      EXPECT_EQ(x.grad().defined(), bool(wanted & 1));
      EXPECT_EQ(weight.grad().defined(), bool(wanted & 2));
      EXPECT_EQ(bias.grad().defined(), bool(wanted & 4));
      if (x.grad().defined()) {
        EXPECT_LE(relative_error(x.grad(), all.dx), testing::kSubsetF64);
      }
      if (weight.grad().defined()) {
        EXPECT_LE(relative_error(weight.grad(), all.dweight), testing::kSubsetF64);
      }
      if (bias.grad().defined()) {
        EXPECT_LE(relative_error(bias.grad(), all.dbias), testing::kSubsetF64);
      }
    }
  }
}

TEST(AbnMemory, ABiasWithoutAWeightGetsItsOwnGradient) {
  AbnCase c = make_case({3, 6, 5, 5}, at::kDouble);
  c.weight.reset();
  const at::Tensor bias = c.bias->detach().clone().set_requires_grad(true);
  abn(c.base, {std::nullopt, bias}).backward(c.dz);
  EXPECT_LE(relative_error(bias.grad(), run_truth(c).dbias), tolerance_across_kinks(at::kDouble));
}

TEST(AbnMemory, ParameterGradientsAreTakenWithoutACopy) {
  const at::Tensor x = torch::randn({2, 1 << 14, 2, 2});
  const at::Tensor weight = torch::ones(1 << 14).set_requires_grad(true);
  const at::Tensor z = abn(x, {weight});
  const at::Tensor dz = torch::ones_like(z);
  memory::reset_peak();
  const int64_t before = live();
  z.backward(dz);
  // Both sums and the inv_std that goes: a third vector would be the copy.
  EXPECT_LT(memory_stats().peak_bytes - before, 3 * weight.numel() * 4);
}

}  // namespace
}  // namespace palimpsest::ops::tests
