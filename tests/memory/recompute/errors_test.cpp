#include "palimpsest/memory/recompute.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/memory/recompute/saved_tensor_hooks.h"
#include "palimpsest/nn/inplace_abn.h"
#include "tests/memory/recompute_support.h"
#include "tests/support/expect_error.h"

#include <ATen/autocast_mode.h>

#include <stdexcept>
#include <thread>

/// The errors of recompute, and the state after them.
namespace palimpsest::memory {
namespace {

using namespace palimpsest::memory::testing;  // NOLINT(google-build-using-namespace)
using palimpsest::testing::usage_error;

TEST(RecomputeErrors, AnInputChangedBetweenForwardAndBackwardIsNoticed) {
  auto x = torch::ones({2, 3}).set_requires_grad(true);
  auto hidden = x * 2;
  // Plainly sin's input would be noticed; that of the addition would not matter, but does here.
  const auto y = recompute([](const at::Tensor& t) { return (t + 1).sin(); }, hidden);
  hidden.add_(1);
  const auto message = usage_error([&] { y.sum().backward(); });
  EXPECT_TRUE(
      contains(message, "[recompute] input 0 of a recomputed segment of shape [2, 3] must not change"))
      << message;
  EXPECT_FALSE(recomputing());
}

TEST(RecomputeErrors, AParameterChangedBetweenForwardAndBackwardIsNoticed) {
  for (const bool bias : {false, true}) {
    torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::Sigmoid());
    const auto y = recompute(net, torch::ones({2, 3}));
    {
      const torch::NoGradGuard no_grad;
      net->parameters()[bias ? 1 : 0].add_(1);
    }
    const auto message = usage_error([&] { y.sum().backward(); });
    EXPECT_TRUE(contains(message, bias ? "parameter of a recomputed segment of shape [4]"
                                       : "parameter of a recomputed segment of shape [4, 3]"))
        << message;
  }
}

TEST(RecomputeErrors, AParameterBehindAnInputOfAnotherThreadMayChange) {
  const auto w = torch::ones({3}).set_requires_grad(true);
  at::Tensor x;
  std::thread([&] {
    x = torch::ones({3}) + 0 * w;  // sequence numbers are per thread: these get beyond the segment's
    for (int i = 0; i < 10000; ++i) x = x + 0;
    x = x + w;  // saves nothing, so w may change
  }).join();
  const auto y = recompute([](const at::Tensor& t) { return t.sin(); }, x);
  {
    const torch::NoGradGuard no_grad;
    w.mul_(2);
  }
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(w.grad(), torch::full({3}, 2.0).cos()));
}

TEST(RecomputeErrors, ATensorWrittenOverAfterItWasSavedIsAnErrorAsInThePlainRun) {
  auto x = torch::ones({2}).set_requires_grad(true);
  const auto fn = [](const at::Tensor& t) { return t.exp().mul_(2); };  // exp wants its result again
  EXPECT_THROW(fn(x).sum().backward(), c10::Error);
  const auto y = recompute(fn, x);
  const auto message = usage_error([&] { y.sum().backward(); });
  EXPECT_TRUE(contains(message, "a tensor saved for backward of shape [2] must not change")) << message;
}

TEST(RecomputeErrors, AFunctionThatWritesOverItsInputIsRefusedWithTheWayOut) {
  nn::InPlaceABN abn(4);
  auto leaf = torch::randn({2, 4, 3, 3}).set_requires_grad(true);
  const auto x = leaf * 1;
  const auto message = usage_error([&] { recompute(abn, x); });
  EXPECT_TRUE(contains(message, "changed input 0 of shape [2, 4, 3, 3]; pass a clone")) << message;
  abn->options.in_place(false);
  recompute(abn, leaf * 1).sum().backward();
  EXPECT_TRUE(leaf.grad().defined());
}

TEST(RecomputeErrors, AnInputOfInferenceModeIsRefused) {
  at::Tensor x;
  {
    const c10::InferenceMode inference;
    x = torch::ones({2});
  }
  torch::nn::Linear linear(2, 2);
  EXPECT_TRUE(contains(usage_error([&] { recompute(linear, x); }), "input 0 was made in inference mode"));
  EXPECT_TRUE(recompute(linear, x.clone()).requires_grad());
}

TEST(RecomputeErrors, ASecondRunWithOtherOutputsIsRefused) {
  const auto message_of = [](auto second) {
    int runs = 0;
    auto x = torch::ones({2, 3}).set_requires_grad(true);
    const auto y =
        recompute([&](const at::Tensor& t) { return runs++ == 0 ? Tensors{t.exp()} : second(t); }, x);
    return usage_error([&] { y[0].sum().backward(); });
  };
  const auto shape = message_of([](const at::Tensor& t) { return Tensors{t.exp().slice(1, 0, 2)}; });
  EXPECT_TRUE(contains(
      shape, "output 0 was Float of shape [2, 3] on cpu first and is Float of shape [2, 2] on cpu now"))
      << shape;
  const auto count = message_of([](const at::Tensor& t) { return Tensors{t.exp(), t}; });
  EXPECT_TRUE(contains(count, "gave 1 outputs first and 2 now")) << count;
  const auto dtype = message_of([](const at::Tensor& t) { return Tensors{t.exp().to(at::kDouble)}; });
  EXPECT_TRUE(contains(dtype, "is Double of shape [2, 3] on cpu now")) << dtype;
  const auto undefined = message_of([](const at::Tensor&) { return Tensors{at::Tensor()}; });
  EXPECT_TRUE(contains(undefined, "is undefined now")) << undefined;
}

TEST(RecomputeErrors, ASecondRunThatSavesOtherTensorsIsRefused) {
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::Dropout(0.5), torch::nn::Sigmoid());
  auto y = recompute(net, torch::ones({2, 3}).set_requires_grad(true));
  net->eval();  // saves no mask
  const auto count = usage_error([&] { y.sum().backward(); });
  EXPECT_TRUE(contains(count, "train or eval mode")) << count;

  int runs = 0;
  auto x = torch::ones({2, 3}).set_requires_grad(true);
  y = recompute([&](const at::Tensor& t) { return t.repeat({++runs, 1}).exp().sum(); }, x);
  const auto form = usage_error([&] { y.backward(); });
  EXPECT_TRUE(
      contains(form, "saved tensor 0 was Float of shape [2, 3] on cpu first and is Float of shape [4, 3]"))
      << form;
}

TEST(RecomputeErrors, AnExceptionInTheFirstRunLeavesNothingBehind) {
  auto x = torch::ones({2}).set_requires_grad(true);
  const auto fn = [](const at::Tensor& t) -> at::Tensor {
    t.exp();
    throw std::domain_error("first");
  };
  EXPECT_THROW(recompute(fn, x), std::domain_error);
  EXPECT_EQ(saved_tensor_hooks(), nullptr);
  x.exp().sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), x.exp()));
}

TEST(RecomputeErrors, AnExceptionInTheSecondRunPassesThroughAndAllIsPutBack) {
  torch::nn::BatchNorm1d norm(3);
  bool broken = false;
  auto x = torch::rand({8, 3}).set_requires_grad(true);
  const auto fn = [&, norm](const at::Tensor& t) mutable {
    const auto y = torch::dropout(norm->forward(t), 0.5, true);
    at::autocast::set_autocast_enabled(at::kCPU, recomputing());
    if (broken) throw std::domain_error("second");
    return y.exp();
  };
  const auto loss = recompute(fn, x, {.buffers = norm->buffers()}).sum();
  const auto random = random_state(), mean = norm->running_mean.clone(), var = norm->running_var.clone();
  broken = true;
  EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), std::domain_error);
  EXPECT_TRUE(same_bytes(random_state(), random));
  EXPECT_TRUE(same_bytes(norm->running_mean, mean));
  EXPECT_TRUE(same_bytes(norm->running_var, var));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_FALSE(recomputing());
  EXPECT_EQ(saved_tensor_hooks(), nullptr);
  broken = false;
  loss.backward();  // and the graph is still good
  EXPECT_TRUE(x.grad().defined());
}

}  // namespace
}  // namespace palimpsest::memory
