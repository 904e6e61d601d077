#include "palimpsest/train/step_loss.h"

#include "palimpsest/train/clip.h"
#include "palimpsest/train/step.h"
#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

namespace palimpsest::train {
namespace {

using namespace testing;

torch::nn::Sequential plain_net() {
  at::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)),
                            torch::nn::Conv2d(4, 3, 1));
  net->to(at::kDouble);
  return net;
}

/// Seven images, each with another number of void pixels; one has a single class.
data::Batch uneven_batch() {
  at::manual_seed(4);
  data::Batch batch{at::randn({7, 3, 6, 6}, at::kDouble), at::randint(3, {7, 6, 6}, at::kLong), {}};
  batch.targets[1].fill_(0);  // which a class weight of 0 leaves without weight
  for (int64_t i = 0; i < 7; ++i) batch.targets[i].narrow(0, 0, i % 6).fill_(255);
  return batch;
}

std::vector<at::Tensor> gradients_of(torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const auto& p : module.parameters()) gradients.push_back(p.grad().clone());
  return gradients;
}

std::vector<LossOptions> step_losses() {
  return {{},
          {.kind = "bootstrap"},
          {.kind = "bootstrap", .bootstrap_probability = 0.4, .bootstrap_share = 0.5},
          {.label_smoothing = 0.1, .class_weights = {0.5, 2, 1}},
          {.label_smoothing = 0.1, .class_weights = {0, 2, 1}},
          {.kind = "bootstrap", .bootstrap_share = 0.5, .label_smoothing = 0.1, .class_weights = {0, 2, 1}}};
}

TEST(StepLoss, PartsHaveTheGradientsOfTheWholeBatch) {
  const auto batch = uneven_batch();
  for (const LossOptions& options : step_losses()) {
    auto whole = plain_net();
    const at::Tensor want = loss(whole->forward(batch.images), batch.targets, options);
    want.backward();
    for (int64_t parts = 1; parts <= 7; ++parts) {
      SCOPED_TRACE(parts);
      auto net = plain_net();
      const Network network(net);
      torch::optim::SGD sgd(net->parameters(), 0.0);
      Step step;
      StepLoss step_loss(network, batch, options, amp::Precision::kF32, parts);
      std::vector<at::Tensor> got;
      Step::RunOptions run;
      run.change_gradients = [&] {
        if (step_loss.has_gradient_factor()) scale_gradients(sgd, step_loss.gradient_factor());
        got = gradients_of(*net);
      };
      step.run_parts(sgd, parts, [&](int64_t part) { return step_loss.part(part); }, run);
      EXPECT_NEAR(step_loss.mean().item<double>(), want.item<double>(), kReorderedF64);
      EXPECT_EQ(step_loss.images(), 7);
      const auto expected = gradients_of(*whole);
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_LE(relative_error(got[i], expected[i]), kReorderedF64) << "parameter " << i;
    }
  }
}

TEST(StepLoss, WithoutAnyPixelThatCountsHasGradientsOfZero) {
  auto batch = uneven_batch();
  for (const int64_t label : {255, 0}) {
    batch.targets.fill_(label);
    const LossOptions options{.label_smoothing = 0.1, .class_weights = {0, 2, 1}};
    for (const int64_t parts : {1, 3}) {
      auto net = plain_net();
      const Network network(net);
      StepLoss step_loss(network, batch, options, amp::Precision::kF32, parts);
      for (int64_t part = 0; part < parts; ++part) step_loss.part(part).backward();
      EXPECT_EQ(step_loss.mean().item<double>(), 0);
      for (const auto& g : gradients_of(*net)) EXPECT_EQ(g.abs().sum().item<double>(), 0);
    }
  }
}

TEST(StepLoss, LetsGoOfTheImagesAfterTheForwardPassOfTheLastPart) {
  const at::NoGradGuard no_layer_saves_them;
  auto net = plain_net();
  const Network network(net);
  for (const int64_t parts : {1, 3}) {
    data::Batch batch = uneven_batch();
    const auto images = batch.images.storage().getWeakStorageImpl();
    StepLoss step_loss(network, std::move(batch), {}, amp::Precision::kF32, parts);
    for (int64_t part = 0; part < parts; ++part) {
      step_loss.release_batch();
      EXPECT_FALSE(images.expired()) << part << " of " << parts;
      step_loss.part(part);
    }
    step_loss.release_batch();
    EXPECT_TRUE(images.expired()) << parts;
  }
}

TEST(StepLoss, NeedsAnImagePerPart) {
  const auto batch = uneven_batch();
  auto net = plain_net();
  const Network network(net);
  expect_error(ErrorKind::kUsage, {"one image per part", "7 images for 8 parts", "accumulate"},
               [&] { StepLoss(network, batch, {}, amp::Precision::kF32, 8); });
}

TEST(StepLoss, AnExceptionInALaterPartLeavesNoGradientsToTheNextStep) {
  auto net = plain_net();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  Step step;
  const at::Tensor images = uneven_batch().images;
  const auto fails = [&](int64_t part) -> at::Tensor {
    if (part == 1) throw std::runtime_error("no memory");
    return net->forward(images).sum();
  };
  EXPECT_THROW(step.run_parts(sgd, 2, fails, {}), std::runtime_error);
  for (const auto& p : net->parameters()) EXPECT_FALSE(p.grad().defined());
}

TEST(ClipGradients, ScalesAllOfThemToTheNormAndReturnsTheNormBefore) {
  for (const double most : {0.5, 1e6}) {
    auto net = plain_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    net->forward(uneven_batch().images).square().mean().backward();
    const auto before = gradients_of(*net);
    double squares = 0;
    for (const auto& g : before) squares += g.square().sum().item<double>();
    const double norm = std::sqrt(squares), factor = std::min(1.0, most / norm);
    EXPECT_NEAR(clip_gradients(sgd, most), norm, kReorderedF64 * norm);
    const auto after = gradients_of(*net);
    for (std::size_t i = 0; i < before.size(); ++i)
      EXPECT_LE(relative_error(after[i], before[i] * factor), kReorderedF64);
  }
}

TEST(ClipGradients, ALargeF32NormDoesNotOverflowAndAnInfiniteOneChangesNothing) {
  const at::Tensor p = at::zeros({4}).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{p}, 0.1);
  p.mutable_grad() = at::full({4}, 1e30);
  EXPECT_NEAR(clip_gradients(sgd, 2) / 2e30, 1, 1e-6);
  EXPECT_NEAR(p.grad()[0].item<double>(), 1, 1e-6);
  p.mutable_grad() = at::tensor({1.0f, std::numeric_limits<float>::infinity(), 2.0f, 3.0f});
  EXPECT_TRUE(std::isinf(clip_gradients(sgd, 2)));
  EXPECT_EQ(p.grad()[2].item<double>(), 2);
  p.mutable_grad() = at::Tensor();
  EXPECT_EQ(clip_gradients(sgd, 2), 0);
}

}  // namespace
}  // namespace palimpsest::train
