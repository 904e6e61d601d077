#include "palimpsest/amp/master_weights.h"

#include "palimpsest/amp/grad_scaler.h"
#include "tests/amp/support.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <optional>
#include <vector>

namespace palimpsest::amp {
namespace {

using testing::kUncached;
using testing::loss_of;
using testing::UsersNet;

TEST(MasterWeights, KeepSmallUpdatesThatF16WeightsLose) {
  // weight / update = 4096 > 2048: half of the last place of f16 beside 1.
  const double lr = std::ldexp(1.0, -12);
  constexpr int kSteps = 4096;
  for (const bool with_masters : {true, false}) {
    std::vector<at::Tensor> weights{torch::ones({2, 2}, at::kHalf).set_requires_grad(true)};
    if (with_masters) weights[0] = torch::ones({2, 2}).set_requires_grad(true);
    std::optional<MasterWeights> masters;
    if (with_masters) masters.emplace(weights, at::kHalf);
    ASSERT_EQ(weights[0].scalar_type(), at::kHalf);
    torch::optim::SGD sgd(with_masters ? masters->parameters() : weights, torch::optim::SGDOptions(lr));
    for (int step = 0; step < kSteps; ++step) {
      weights[0].sum().backward();  // a gradient of 1
      if (with_masters) masters->collect_gradients();
      sgd.step();
      if (with_masters) masters->publish();
      weights[0].mutable_grad() = at::Tensor();
      sgd.zero_grad();
    }
    EXPECT_TRUE(torch::equal(weights[0], torch::full({2, 2}, with_masters ? 0.0 : 1.0, at::kHalf)))
        << (with_masters ? "all 4096 updates arrived" : "not one did");
  }
}

TEST(MasterWeights, TinyGradientsVanishAtScale1AndSurviveAtAChosenScale) {
  // A gradient in [2^-27, 2^-24), which an f16 product passes on.
  const double tiny = std::ldexp(1.5, -26);
  const auto gradient_at = [&](double scale) {
    const auto weight = torch::ones({2, 3}).set_requires_grad(true);
    torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(1));
    GradScaler scaler = GradScaler::constant(scale);
    at::Tensor y;
    {
      const AutocastGuard guard(at::kCPU, at::kHalf, kUncached);
      y = at::mm(torch::ones({1, 2}), weight);
    }
    scaler.scale((y.to(at::kFloat) * tiny).sum()).backward();
    scaler.unscale_(sgd);
    return weight.grad();
  };
  EXPECT_TRUE(torch::equal(gradient_at(1), torch::zeros({2, 3})));
  EXPECT_TRUE(torch::equal(gradient_at(128), torch::full({2, 3}, tiny)));
}

TEST(MasterWeights, TrainToTheSameBitsAsF32ParametersUnderAutocast) {
  std::vector<at::Tensor> casts, copies;
  for (const bool masters_apart : {false, true}) {
    torch::manual_seed(4);
    UsersNet net;
    net->twice = false;  // two gradients of a 16-bit parameter would be added in 16 bits
    std::optional<MasterWeights> masters;
    if (masters_apart) masters.emplace(net->parameters(), at::kBFloat16);
    const auto parameters = masters_apart ? masters->parameters() : net->parameters();
    torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
    GradScaler scaler = GradScaler::constant(1024);
    for (int step = 0; step < 5; ++step) {
      scaler.scale(loss_of(net, at::kBFloat16)).backward();
      if (masters_apart) masters->collect_gradients();
      if (scaler.step(sgd) && masters_apart) masters->publish();
      scaler.update();
      net->zero_grad();
      sgd.zero_grad();
    }
    for (const auto& p : parameters) (masters_apart ? copies : casts).push_back(p.detach().clone());
    if (!masters_apart) continue;
    EXPECT_EQ(net->conv1->weight.scalar_type(), at::kBFloat16);
    EXPECT_EQ(net->bn->weight.scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::equal(net->fc1->weight, parameters[5].to(at::kBFloat16))) << "published";
  }
  ASSERT_EQ(casts.size(), copies.size());
  for (size_t i = 0; i < casts.size(); ++i)
    EXPECT_TRUE(torch::equal(casts[i], copies[i])) << "parameter " << i;
}

}  // namespace
}  // namespace palimpsest::amp
