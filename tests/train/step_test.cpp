#include "palimpsest/train/step.h"

#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/train/network.h"
#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

namespace palimpsest::train {
namespace {

using namespace testing;

/// A small network on one batch.
struct OneBatch {
  explicit OneBatch(const StepOptions& options = {})
      : model(make_tiny(1)),
        images(at::randn({2, 3, 4, 4})),
        step(*model, options),
        precision(options.precision) {}

  at::Tensor loss() { return forward(*model, images, precision).logsumexp(1).mean(); }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> result;
    for (const auto& p : model->parameters()) result.push_back(p.detach().clone());
    for (const auto& b : model->buffers()) result.push_back(b.detach().clone());
    return result;
  }

  std::shared_ptr<TinySegmenter> model;
  at::Tensor images;
  Step step;
  amp::Precision precision;
};

constexpr StepOptions kConstantScale{amp::Precision::kF16, {LossScale::Kind::kConstant, 1024}};

TEST(Step, IsForwardBackwardStepAndZeroGradInF32) {
  OneBatch got, want;
  torch::optim::SGD sgd(got.model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
      by_hand(want.model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int i = 0; i < 3; ++i) {
    at::manual_seed(static_cast<uint64_t>(i));
    EXPECT_TRUE(got.step.run(sgd, [&] { return got.loss(); }));
    at::manual_seed(static_cast<uint64_t>(i));
    want.loss().backward();
    by_hand.step();
    by_hand.zero_grad();
  }
  expect_equal(got.values(), want.values());
  EXPECT_EQ(got.step.steps_done(), 3);
  for (const auto& p : got.model->parameters()) EXPECT_FALSE(p.grad().defined());
}

TEST(Step, ForwardHasThePrecisionOfTheStep) {
  const auto logits_in = [](amp::Precision precision, bool by_step) {
    OneBatch one({.precision = precision});
    EXPECT_EQ(one.step.precision(), precision);
    at::manual_seed(1);  // of the dropout
    return by_step ? one.step.forward(*one.model, one.images) : forward(*one.model, one.images, precision);
  };
  for (const auto precision : {amp::Precision::kF32, amp::Precision::kBF16, amp::Precision::kF16}) {
    at::manual_seed(2);  // of the images
    const at::Tensor want = logits_in(precision, false);
    at::manual_seed(2);
    const at::Tensor got = logits_in(precision, true);
    EXPECT_TRUE(got.equal(want));
    EXPECT_EQ(got.scalar_type(), at::kFloat);
    at::manual_seed(2);
    EXPECT_EQ(got.equal(logits_in(amp::Precision::kF32, true)), precision == amp::Precision::kF32);
  }
}

TEST(Step, EntersItsPhasesInOrderAndFreesTheGraphBeforeTheUpdate) {
  OneBatch one;
  torch::optim::SGD sgd(one.model->parameters(), 0.1);
  std::vector<Step::Phase> phases;
  std::weak_ptr<torch::autograd::Node> graph;
  Step::RunOptions run;
  run.entering = [&](Step::Phase phase) {
    phases.push_back(phase);
    EXPECT_EQ(graph.expired(), phase != Step::Phase::kBackward);
  };
  one.step.run(
      sgd,
      [&] {
        at::Tensor loss = one.loss();
        graph = loss.grad_fn();
        return loss;
      },
      run);
  EXPECT_EQ(phases,
            (std::vector<Step::Phase>{Step::Phase::kForward, Step::Phase::kBackward, Step::Phase::kUpdate}));
}

TEST(Step, AnOverflowInF16IsSkippedWithoutTrace) {
  OneBatch one(kConstantScale);
  torch::optim::SGD sgd(one.model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  EXPECT_TRUE(one.step.run(sgd, [&] { return one.loss(); }));
  const auto before = one.values();
  const at::Tensor images = one.images;
  one.images = images * std::numeric_limits<float>::infinity();
  EXPECT_FALSE(one.step.run(sgd, [&] { return one.loss(); }));
  expect_equal(one.values(), before);
  EXPECT_EQ(one.step.skipped_steps(), 1);
  EXPECT_EQ(one.step.skipped_in_a_row(), 1);
  EXPECT_FALSE(one.step.is_hopeless());
  one.images = images;
  EXPECT_TRUE(one.step.run(sgd, [&] { return one.loss(); }));
  EXPECT_EQ(one.step.skipped_in_a_row(), 0);
}

TEST(Step, AnExceptionOfTheLossPassesAndTheNextStepWorks) {
  OneBatch one(kConstantScale);
  torch::optim::SGD sgd(one.model->parameters(), 0.1);
  const auto before = one.values();
  EXPECT_THROW(one.step.run(sgd, []() -> at::Tensor { throw std::runtime_error("no batch"); }),
               std::runtime_error);
  expect_equal(one.values(), before);
  EXPECT_EQ(one.step.steps_done(), 0);
  EXPECT_TRUE(one.step.run(sgd, [&] { return one.loss(); }));
}

TEST(Step, AnExceptionOfBackwardLeavesNoGradientsToTheNextStep) {
  for (const StepOptions& options : {StepOptions{}, kConstantScale})
    for (const int64_t parts : {1, 2}) {
      OneBatch net(options), twin(options);
      twin.images = net.images;
      for (const OneBatch* one : {&net, &twin}) one->model->dropout->eval();
      torch::optim::SGD sgd(net.model->parameters(), 0.1), twin_sgd(twin.model->parameters(), 0.1);
      const auto before = net.values();
      at::Tensor first = net.model->parameters()[0];
      int64_t calls = 0;
      const auto hook = first.register_hook([&](const at::Tensor& /*gradient*/) {
        if (++calls == parts) throw std::runtime_error("no memory");
      });
      const auto step = [&](OneBatch& of, torch::optim::SGD& optimizer) {
        return of.step.run_parts(optimizer, parts, [&](int64_t /*part*/) { return of.loss(); }, {});
      };
      EXPECT_THROW(step(net, sgd), std::runtime_error);
      first.remove_hook(hook);
      for (const auto& p : net.model->parameters()) EXPECT_FALSE(p.grad().defined());
      if (net.step.scales()) expect_equal(net.values(), before);  // statistics, too
      EXPECT_TRUE(step(net, sgd));
      EXPECT_TRUE(step(twin, twin_sgd));
      for (std::size_t i = 0; i < net.model->parameters().size(); ++i)
        EXPECT_TRUE(net.model->parameters()[i].equal(twin.model->parameters()[i])) << i;
    }
}

/// Has no memory for its state in its first step.
class FailsOnce : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (!std::exchange(failed_, true)) throw std::runtime_error("no memory");
    return SGD::step(std::move(closure));
  }

 private:
  bool failed_ = false;
};

TEST(Step, AnExceptionOfTheOptimizerPassesAndTheNextStepWorks) {
  for (const StepOptions& options : {StepOptions{}, kConstantScale}) {
    OneBatch net(options);
    FailsOnce sgd(net.model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const auto before = net.values();
    EXPECT_THROW(net.step.run(sgd, [&] { return net.loss(); }), std::runtime_error);
    EXPECT_TRUE(net.step.run(sgd, [&] { return net.loss(); }));
    EXPECT_FALSE(net.values()[0].equal(before[0]));
    EXPECT_EQ(net.step.steps_done(), 1);
  }
}

TEST(Step, AnOptimizerThatNeedsAClosureIsAClearErrorBeforeTheForwardPass) {
  OneBatch one;
  torch::optim::LBFGS lbfgs(one.model->parameters());
  const std::vector<std::string> parts{"without a closure, got LBFGS", "SGD or Adam", "step(closure)"};
  bool ran = false;
  expect_error(ErrorKind::kUsage, parts, [&] {
    one.step.run(lbfgs, [&] {
      ran = true;
      return one.loss();
    });
  });
  EXPECT_FALSE(ran);
  expect_error(ErrorKind::kUsage, parts, [&] { one.step.update(lbfgs); });
}

TEST(Step, TwoLossesWithAnOptimizerEachShareOneScale) {
  for (const bool overflow : {false, true}) {
    OneBatch a(kConstantScale), b;
    torch::optim::SGD sgd(a.model->parameters(), 0.1);
    torch::optim::Adam adam(b.model->parameters(), 0.1);
    const auto a_before = a.values(), b_before = b.values();
    Step& step = a.step;
    step.begin();
    const at::Tensor first = a.loss();
    step.forward_done(first);
    step.backward(first);
    EXPECT_TRUE(step.update(sgd));
    at::Tensor second = forward(*b.model, b.images, amp::Precision::kF16).mean();
    if (overflow) second = second * std::numeric_limits<float>::infinity();
    step.forward_done(second);
    step.backward(second);
    EXPECT_EQ(step.update(adam), !overflow);
    EXPECT_EQ(step.end(), !overflow);
    EXPECT_EQ(step.skipped_steps(), overflow ? 1 : 0);
    EXPECT_FALSE(a.values()[0].equal(a_before[0]));
    EXPECT_EQ(b.values()[0].equal(b_before[0]), overflow);
  }
}

TEST(Step, GradientsCanBeClippedAfterTheyAreUnscaled) {
  OneBatch got(kConstantScale), want({amp::Precision::kF16, {LossScale::Kind::kConstant, 1}});
  for (OneBatch* one : {&got, &want}) {
    torch::optim::SGD sgd(one->model->parameters(), 1);
    at::manual_seed(1);
    one->step.begin();
    const at::Tensor loss = one->loss() * 64;
    one->step.forward_done(loss);
    one->step.backward(loss);
    double norm = 0;
    one->step.update(sgd, [&] { norm = torch::nn::utils::clip_grad_norm_(one->model->parameters(), 0.5); });
    one->step.end();
    EXPECT_GT(norm, 0.5);
  }
  for (std::size_t i = 0; i < got.values().size(); ++i)
    EXPECT_LE(relative_error(got.values()[i], want.values()[i]),
              palimpsest::testing::tolerance(DType::f16).relative_l2);
}

TEST(Step, ObservesTheStepsThatItIsAskedTo) {
  OneBatch one(kConstantScale);
  torch::optim::SGD sgd(one.model->parameters(), 0.1);
  one.step.run(sgd, [&] { return one.loss(); });
  EXPECT_FALSE(one.step.observation());
  one.step.run(sgd, [&] { return one.loss(); }, {.observe = true, .entering = {}});
  ASSERT_TRUE(one.step.observation());
  int64_t parameters = 0;
  for (const auto& p : one.model->parameters()) parameters += p.numel();
  EXPECT_EQ(one.step.observation()->weights.values(), parameters);
  EXPECT_GT(one.step.observation()->activations.values(), 0);
}

TEST(Step, ResumesItsScaleAndItsCounts) {
  OneBatch first({amp::Precision::kF16, {}});
  torch::optim::SGD sgd(first.model->parameters(), 0.1);
  const at::Tensor images = first.images;
  first.images = images * std::numeric_limits<float>::infinity();
  first.step.run(sgd, [&] { return first.loss(); });
  Step second({amp::Precision::kF16, {}});
  second.resume(first.step.steps_done(), first.step.state());
  EXPECT_EQ(second.loss_scale(), 32768);
  EXPECT_EQ(second.steps_done(), 1);
  EXPECT_EQ(second.skipped_steps(), 1);
  EXPECT_EQ(second.skipped_in_a_row(), 1);
  Step in_f32;
  in_f32.resume(first.step.steps_done(), first.step.state());
  EXPECT_EQ(in_f32.loss_scale(), 1);
  EXPECT_FALSE(in_f32.state());
}

}  // namespace
}  // namespace palimpsest::train
