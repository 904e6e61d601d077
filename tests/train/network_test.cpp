#include "palimpsest/train/network.h"

#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/trainer.h"
#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/pooling.h>

#include <memory>
#include <type_traits>

namespace palimpsest::train {
namespace {

using namespace testing;

torch::nn::Sequential make_sequential() {
  at::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Conv2d(3, 8, 1), torch::nn::BatchNorm2d(8), torch::nn::ReLU(),
                               torch::nn::Conv2d(8, 3, 1));
}

/// A module whose forward() is not Tensor -> Tensor.
struct TwoArguments : torch::nn::Module {
  TwoArguments() : conv(register_module("conv", torch::nn::Conv2d(3, 3, 1))) {}
  std::pair<at::Tensor, int> forward(const at::Tensor& images, int count) { return {conv(images), count}; }
  torch::nn::Conv2d conv;
};

static_assert(std::is_convertible_v<torch::nn::Sequential&, Network>);
static_assert(std::is_convertible_v<torch::nn::Conv2dImpl&, Network>);
static_assert(std::is_convertible_v<std::shared_ptr<nn::Model>, Network>);
static_assert(!std::is_convertible_v<TwoArguments&, Network>);

TEST(Network, IsAnyModuleAsReferencePointerOrHolder) {
  auto net = make_sequential();
  const at::Tensor images = at::rand({2, 3, 4, 4});
  const at::Tensor want = net->forward(images);
  for (const Network& network : {Network(net), Network(net.ptr()), Network(*net.ptr())}) {
    EXPECT_EQ(&network.module(), net.ptr().get());
    EXPECT_TRUE(network.forward(images).equal(want));
  }
  TwoArguments net_of_two;
  const Network custom(net_of_two, [&](const at::Tensor& x) { return net_of_two.forward(x, 3).first; });
  EXPECT_TRUE(custom.forward(images).equal(net_of_two.conv(images)));
}

TEST(Network, SixteenBitLogitsAreReturnedAsF32) {
  torch::nn::Linear linear(4, 3);
  const at::Tensor x = at::rand({2, 4});
  EXPECT_TRUE(forward(linear, x, amp::Precision::kF32).equal(linear(x)));
  const at::Tensor logits = forward(linear, x, amp::Precision::kBF16);
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_TRUE(logits.equal(logits.to(at::kBFloat16).to(at::kFloat))) << "computed in bf16";
}

TEST(Network, AnyModuleTrainsAndTheTargetsTellTheTask) {
  const auto net = make_sequential();
  data::Loader loader(std::make_shared<BrightestColor>(20, 6), loader_options(4));
  TrainerOptions options;
  options.epochs = 20;
  options.optimizer.lr = 0.1;
  options.quiet = true;
  const auto outcome = train(net, loader, &loader, options);
  EXPECT_LT(outcome.steps.back().loss, 0.5 * outcome.steps.front().loss);
  EXPECT_TRUE(outcome.evaluations.back().segmentation);

  torch::nn::Sequential classifier(torch::nn::Conv2d(3, 3, 1), torch::nn::AdaptiveAvgPool2d(1),
                                   torch::nn::Flatten());
  data::Loader images(std::make_shared<BrightestColor>(30, 6, /*segmentation=*/false), loader_options(6));
  const auto record = evaluate(classifier, images, {}, {});
  EXPECT_FALSE(record.segmentation);
  EXPECT_EQ(record.images, 30);
}

}  // namespace
}  // namespace palimpsest::train
