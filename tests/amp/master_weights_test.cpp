// f32 master weights: what a 16-bit update loses, copies dropped from libtorch's own layers, the paper's
// persistent copies, and gradients in 16 bits.
#include "palimpsest/amp/autocast_guard.h"
#include "palimpsest/amp/buffer_keeper.h"
#include "palimpsest/amp/grad_scaler.h"
#include "palimpsest/amp/gradients.h"
#include "palimpsest/amp/persistent_copies.h"
#include "palimpsest/amp/weight_copies.h"
#include "palimpsest/memory/meter.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace palimpsest::amp {
namespace {

using palimpsest::testing::expect_error;

constexpr AutocastOptions kUncached{.cache = false};

/// Someone's own network: layers of libtorch alone.
struct UsersNetImpl : torch::nn::Module {
  UsersNetImpl()
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 3).padding(1)))),
        bn(register_module("bn", torch::nn::BatchNorm2d(64))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 128, 1).bias(false)))),
        fc1(register_module("fc1", torch::nn::Linear(128, 64))),
        fc2(register_module("fc2", torch::nn::Linear(torch::nn::LinearOptions(64, 5).bias(false)))) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto h = conv2(bn(conv1(x)).relu_()).mean({2, 3});
    if (!twice) return fc2(fc1(h).relu());
    // Twice the same layer, and at::linear, whose cast comes before the transposition.
    return fc2(fc1(h).relu()) + at::linear(fc1(h), fc2->weight);
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn;
  torch::nn::Conv2d conv2;
  torch::nn::Linear fc1, fc2;
  bool twice = true;
};
TORCH_MODULE(UsersNet);

at::Tensor images() {
  torch::manual_seed(2);
  return torch::randn({4, 3, 6, 6});
}

at::Tensor loss_of(UsersNet& net, at::ScalarType type, const AutocastOptions& options = kUncached) {
  const AutocastGuard guard(at::kCPU, type, options);
  return torch::cross_entropy_loss(net(images()).to(at::kFloat), torch::tensor({0, 1, 2, 3}));
}

std::vector<at::Tensor> gradients_of(UsersNet& net) {
  std::vector<at::Tensor> gradients;
  for (const auto& p : net->parameters()) gradients.push_back(p.grad().clone());
  net->zero_grad();
  return gradients;
}

TEST(WeightCopies, AreDroppedAndCastAgainWithTheSameGradientsToTheLastBit) {
  // bf16: in f16 libtorch's convolution takes oneDNN's reference loops.
  for (const bool cache : {false, true}) {
    torch::manual_seed(1);
    UsersNet net;
    loss_of(net, at::kBFloat16, {.cache = cache}).backward();
    const auto want = gradients_of(net);
    const auto loss = loss_of(net, at::kBFloat16, {.cache = cache});
    const auto dropped = drop_weight_copies(loss);
    EXPECT_EQ(dropped.nodes, 6) << "two convolutions, fc1 and fc2 twice each";
    EXPECT_TRUE(dropped.unknown.empty());
    const int64_t weights = 64 * 27 + 128 * 64 + 2 * (64 * 128 + 5 * 64);
    EXPECT_EQ(dropped.bytes, 2 * weights);
    EXPECT_EQ(drop_weight_copies(loss).nodes, 0) << "dropped already";
    loss.backward();
    const auto got = gradients_of(net);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << "parameter " << i;
  }
}

TEST(WeightCopies, LeaveMemoryAtOnce) {
  torch::manual_seed(1);
  UsersNet net;
  loss_of(net, at::kBFloat16).backward();
  memory::Meter meter;
  const auto loss = loss_of(net, at::kBFloat16);
  const int64_t before = memory::memory_stats().current_bytes;
  const auto dropped = drop_weight_copies(loss);
  const int64_t freed = before - memory::memory_stats().current_bytes;
  EXPECT_GE(freed, dropped.bytes * 9 / 10);
  loss.backward();
}

TEST(WeightCopies, AChangedWeightIsAnErrorInBackward) {
  UsersNet net;
  const auto loss = loss_of(net, at::kBFloat16);
  drop_weight_copies(loss);
  {
    const torch::NoGradGuard no_grad;
    net->conv2->weight.mul_(2);
  }
  try {
    loss.backward();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("a weight must not change between forward and backward"),
              std::string::npos);
  }
}

TEST(WeightCopies, ALayerThatIsNotKnownIsNamed) {
  const AutocastGuard guard(at::kCPU, at::kBFloat16, kUncached);
  const auto weight = torch::randn({2, 4, 3}).set_requires_grad(true);
  const auto y = at::bmm(torch::randn({2, 5, 4}), weight);
  const auto copies = drop_weight_copies(y);
  EXPECT_EQ(copies.nodes, 0);
  EXPECT_EQ(copies.unknown, std::vector<std::string>{"BmmBackward0"});
}

TEST(MasterWeights, KeepSmallUpdatesThatF16WeightsLose) {
  // weight / update = 4096 > 2048: half of the last place of f16 beside 1 (requirement 41).
  const double lr = std::ldexp(1.0, -12);
  constexpr int kSteps = 4096;
  at::Tensor half = torch::ones({4}).to(at::kHalf), master = torch::ones({4});
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor gradient = torch::ones({4}).to(at::kHalf);
    half.sub_(gradient * lr);
    master.sub_(gradient.to(at::kFloat) * lr);
  }
  EXPECT_TRUE(torch::equal(half, torch::ones({4}).to(at::kHalf))) << "not one of 4096 updates arrived";
  EXPECT_TRUE(torch::equal(master, torch::zeros({4}))) << "all did";
}

TEST(MasterWeights, TinyGradientsVanishAtScale1AndSurviveAtAChosenScale) {
  // A gradient in [2^-27, 2^-24) (requirement 46) that flows through an f16 product.
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

TEST(MasterWeights, PersistentCopiesTrainToTheSameBits) {
  std::vector<at::Tensor> casts, copies;
  for (const bool persistent : {false, true}) {
    torch::manual_seed(4);
    UsersNet net;
    net->twice = false;  // two gradients of a 16-bit parameter would be added in 16 bits
    std::optional<PersistentCopies> masters;
    if (persistent) masters.emplace(*net, at::kBFloat16);
    const auto parameters = persistent ? masters->parameters() : net->parameters();
    torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
    GradScaler scaler = GradScaler::constant(1024);
    for (int step = 0; step < 5; ++step) {
      scaler.scale(loss_of(net, at::kBFloat16)).backward();
      if (persistent) masters->collect_gradients();
      if (scaler.step(sgd) && persistent) masters->publish();
      scaler.update();
      net->zero_grad();
      sgd.zero_grad();
    }
    for (const auto& p : parameters) (persistent ? copies : casts).push_back(p.detach().clone());
    if (!persistent) continue;
    EXPECT_EQ(net->conv1->weight.scalar_type(), at::kBFloat16);
    EXPECT_EQ(net->bn->weight.scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::equal(net->fc1->weight, parameters[5].to(at::kBFloat16))) << "published";
  }
  ASSERT_EQ(casts.size(), copies.size());
  for (size_t i = 0; i < casts.size(); ++i)
    EXPECT_TRUE(torch::equal(casts[i], copies[i])) << "parameter " << i;
}

TEST(MasterWeights, GradientsMayAddUpInSixteenBits) {
  UsersNet net;
  const auto parameters = net->parameters();
  loss_of(net, at::kBFloat16).backward();
  const auto want = gradients_of(net);
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat}) {
    accumulate_gradients_in(type, parameters);
    for (int pass = 0; pass < 2; ++pass) loss_of(net, at::kBFloat16).backward();
    for (const auto& p : parameters) EXPECT_EQ(p.grad().scalar_type(), type);
    const auto got = gradients_of(net);
    const double limit = type == at::kFloat ? 1e-6 : type == at::kHalf ? 2e-3 : 1e-2;
    for (size_t i = 0; i < got.size(); ++i) {
      const auto both = 2 * want[i];
      EXPECT_LE((got[i].to(at::kFloat) - both).norm().item<double>(),
                limit * both.norm().item<double>() + 1e-6);
    }
  }
  expect_error(ErrorKind::kUsage, {"dtype must be f32, f16 or bf16, got Double"},
               [&] { accumulate_gradients_in(at::kDouble, parameters); });
  loss_of(net, at::kBFloat16).backward();
  expect_error(ErrorKind::kUsage, {"gradients must be zeroed before their type changes, got one of Float"},
               [&] { accumulate_gradients_in(at::kHalf, parameters); });
  expect_error(ErrorKind::kUsage, {"parameters must be f32 leaves, got Double"},
               [&] { accumulate_gradients_in(at::kHalf, {torch::ones({2}, at::kDouble)}); });
}

TEST(BufferKeeper, ASkippedStepLeavesRunningStatisticsAsTheyWere) {
  UsersNet net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  const BufferKeeper keeper(*net);
  GradScaler scaler;
  loss_of(net, at::kBFloat16).backward();  // statistics of their own
  net->zero_grad();
  const auto mean = net->bn->running_mean.clone(), count = net->bn->num_batches_tracked.clone();
  keeper.save();
  {
    const AutocastGuard guard(at::kCPU, at::kBFloat16, kUncached);
    const auto poisoned = images().index_fill_(0, torch::tensor({1}), std::numeric_limits<float>::infinity());
    scaler.scale(net(poisoned).to(at::kFloat).sum()).backward();
  }
  EXPECT_FALSE(net->bn->running_mean.isfinite().all().item<bool>()) << "what would stay";
  ASSERT_FALSE(scaler.step(sgd));
  keeper.restore();
  EXPECT_TRUE(torch::equal(net->bn->running_mean, mean));
  EXPECT_TRUE(torch::equal(net->bn->num_batches_tracked, count));
}

}  // namespace
}  // namespace palimpsest::amp
