#include "palimpsest/nn/stacked_norms.h"

#include "palimpsest/memory/meter.h"
#include "palimpsest/nn/fold.h"
#include "tests/nn/support.h"

namespace palimpsest::nn {
namespace {

constexpr int64_t kChannels[] = {3, 1, 4};

std::vector<BatchNormAct> norms_of(const NormOptions& options, at::ScalarType type = torch::kFloat64) {
  torch::manual_seed(2);
  const at::NoGradGuard no_grad;
  std::vector<BatchNormAct> norms;
  for (const int64_t channels : kChannels) {
    norms.emplace_back(BatchNormActOptions(channels, options).eps(1e-3));
    norms.back()->to(type);
    norms.back()->weight.uniform_(0.5, 1.5);
    norms.back()->bias.uniform_(-1, 1);
  }
  return norms;
}

std::vector<at::Tensor> parts_of(int64_t batch) {
  torch::manual_seed(3);
  std::vector<at::Tensor> parts;
  for (const int64_t channels : kChannels)
    parts.push_back(torch::randn({batch, channels, 4, 5}, torch::kFloat64).set_requires_grad(true));
  return parts;
}

/// The outputs of two steps, the gradients of the second, and all parameters and statistics after both.
std::vector<at::Tensor> two_steps(std::vector<BatchNormAct>& norms, bool stacked, int64_t batch = 2) {
  std::vector<at::Tensor> results;
  auto leaves = parts_of(batch);
  for (int step = 0; step < 2; ++step) {
    std::vector<at::Tensor> parts;
    for (const auto& leaf : leaves) parts.push_back(leaf * (1 + step));
    at::Tensor z;
    if (stacked) {
      z = forward_stacked(std::move(parts), norms);
    } else {
      for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = norms[i]->forward(parts[i]);
      z = at::cat(parts, 1);
    }
    results.push_back(z.detach().clone());
    torch::sin(z * 2).sum().backward();
  }
  for (const auto& leaf : leaves) results.push_back(leaf.grad());
  for (const auto& norm : norms) {
    for (const auto& p : norm->parameters()) results.push_back(p.grad());
    for (const auto& b : norm->buffers()) results.push_back(b.to(torch::kFloat64));
  }
  return results;
}

void expect_same(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), want[i].defined()) << "result " << i;
    if (want[i].defined() && want[i].numel() > 0) {
      EXPECT_LE(relative_error(got[i], want[i]), kSameMaths) << "result " << i;
    }
  }
}

TEST(StackedNorms, GiveTheLayersOwnOutputsGradientsAndStatistics) {
  for (const auto& name : strategy_names())
    for (const auto activation : {Activation::kLeakyReLU, Activation::kReLU, Activation::kSiLU}) {
      const NormOptions options{parse_strategy(name), activation};
      if (!fits(options.strategy, activation)) continue;
      SCOPED_TRACE(name + " " + to_string(activation));
      auto alone = norms_of({Strategy::kStandard, activation}), stacked = norms_of(options);
      expect_same(two_steps(stacked, true), two_steps(alone, false));
    }
}

TEST(StackedNorms, RunFrozenLayersWithTheirStatisticsAndTrainTheOthers) {
  auto alone = norms_of({Strategy::kStandard}), stacked = norms_of({});
  for (auto* norms : {&alone, &stacked}) (*norms)[1]->eval();
  expect_same(two_steps(stacked, true), two_steps(alone, false));
  for (auto* norms : {&alone, &stacked})
    for (auto& norm : *norms) norm->eval();
  expect_same(two_steps(stacked, true), two_steps(alone, false));
}

TEST(StackedNorms, GiveAnEmptyStackForAnEmptyBatch) {
  auto norms = norms_of({});
  const auto z = two_steps(norms, true, 0).front();
  EXPECT_EQ(z.sizes(), at::IntArrayRef({0, 8, 4, 5}));
}

TEST(StackedNorms, ApplyTheActivationAloneAfterFolding) {
  auto norms = norms_of({});
  const at::NoGradGuard no_grad;
  for (auto& norm : norms) {
    norm->eval();
    keep_activation_only(*norm);
  }
  const auto parts = parts_of(2);
  std::vector<at::Tensor> copies;
  for (const auto& part : parts) copies.push_back(part.clone());
  EXPECT_TRUE(
      torch::equal(forward_stacked(std::move(copies), norms), at::leaky_relu(at::cat(parts, 1), 0.01)));
}

TEST(StackedNorms, SaveOneStack) {
  auto norms = norms_of({}, torch::kFloat32);
  std::vector<at::Tensor> parts;
  for (const int64_t channels : kChannels)
    parts.push_back(torch::randn({8, channels, 32, 32}).set_requires_grad(true).mul(1));
  memory::Meter meter;
  const auto z = forward_stacked(std::move(parts), norms);
  meter.forward_done();
  const auto stack = static_cast<int64_t>(z.nbytes());
  EXPECT_LE(meter.kept_bytes(),
            stack + 4096);  // the parts were there before: they are not saved, and not counted
}

}  // namespace
}  // namespace palimpsest::nn
