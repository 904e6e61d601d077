#include "palimpsest/train/common/foreach_optimizers.h"

#include "palimpsest/train/optimizer.h"
#include "palimpsest/train/optimizer_state.h"
#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace palimpsest::train {
namespace {

using testing::make_tiny;
using testing::TinySegmenter;

std::vector<at::Tensor> tensors_of(const nn::StateDict& state) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : state) tensors.push_back(tensor);
  return tensors;
}

/// Gives each parameter the same random gradient in both models. `without`: a parameter that gets none.
void set_gradients(TinySegmenter& a, TinySegmenter& b, const std::string& without) {
  auto ours = a.named_parameters(), theirs = b.named_parameters();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const bool none = ours[i].key() == without;
    ours[i].value().mutable_grad() = none ? at::Tensor() : at::randn_like(ours[i].value());
    theirs[i].value().mutable_grad() = none ? at::Tensor() : ours[i].value().grad().clone();
  }
}

/// Updates two equal models five times, one by lists and one by libtorch. One parameter begins in the third
/// step.
template <class Optimizer, class Options>
void expect_the_bits_of_libtorch(const Options& options) {
  const auto ours = make_tiny(3), theirs = make_tiny(3);
  Optimizer by_lists(ours->parameters(), options), by_libtorch(theirs->parameters(), options);
  for (int step = 0; step < 5; ++step) {
    set_gradients(*ours, *theirs, step < 2 ? "conv2.weight" : "");
    foreach_step(by_lists);
    by_libtorch.step();
  }
  testing::expect_equal(ours->parameters(), theirs->parameters());
  const auto a = optimizer_state(by_lists, *ours), b = optimizer_state(by_libtorch, *theirs);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].first, b[i].first);
  testing::expect_equal(tensors_of(a), tensors_of(b));
}

TEST(ForeachOptimizers, SgdHasTheBitsAndTheStateOfLibtorch) {
  using Options = torch::optim::SGDOptions;
  expect_the_bits_of_libtorch<torch::optim::SGD>(Options(0.1));
  expect_the_bits_of_libtorch<torch::optim::SGD>(Options(0.1).momentum(0.9));
  expect_the_bits_of_libtorch<torch::optim::SGD>(
      Options(0.1).momentum(0.9).dampening(0.2).weight_decay(0.01));
  expect_the_bits_of_libtorch<torch::optim::SGD>(
      Options(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
}

TEST(ForeachOptimizers, AdamWHasTheBitsAndTheStateOfLibtorch) {
  using Options = torch::optim::AdamWOptions;
  expect_the_bits_of_libtorch<torch::optim::AdamW>(Options(0.1));
  expect_the_bits_of_libtorch<torch::optim::AdamW>(
      Options(0.1).betas(std::make_tuple(0.8, 0.95)).eps(1e-3).weight_decay(0));
}

TEST(ForeachOptimizers, ListsAreBoundedSoThatTheirCopiesAre) {
  std::vector<at::Tensor> parameters;
  for (const int64_t values : {kListValues / 2, kListValues / 2, kListValues + 1, int64_t{3}})
    parameters.push_back(at::zeros({values}).requires_grad_(true));
  for (at::Tensor& parameter : parameters) parameter.mutable_grad() = at::ones_like(parameter);
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.5).weight_decay(0.1));
  const testing::OperatorCalls calls;
  foreach_step(sgd);
  EXPECT_EQ(calls.count("aten::_foreach_add_"), 3);  // two halves, the larger one, the last
  EXPECT_EQ(calls.waits(), 0) << calls.text();
  for (const at::Tensor& parameter : parameters) EXPECT_TRUE(parameter.eq(-0.5).all().item<bool>());
}

TEST(ForeachOptimizers, TheCpuKeepsTheStepOfLibtorch) {
  const auto model = make_tiny(3);
  const auto sgd = make_optimizer(*model, {});
  for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::ones_like(parameter);
  const testing::OperatorCalls calls;
  sgd.optimizer->step();
  EXPECT_EQ(calls.count("aten::_foreach_add_"), 0);
  EXPECT_GT(calls.count("aten::add_"), 0);
}

}  // namespace
}  // namespace palimpsest::train
