#include "palimpsest/train/optimizer_state.h"

#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/safetensors.h"
#include "palimpsest/train/checkpoint.h"
#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::train {
namespace {

using namespace testing;
using torch::optim::Optimizer;

using Parameters = std::vector<at::Tensor>;

struct OptimizerKind {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(const Parameters&)> make;
  std::vector<std::string> fields;  ///< of the state of one parameter
};

template <class Made, class Options>
std::function<std::unique_ptr<Optimizer>(const Parameters&)> maker(const Options& options) {
  return [options](const Parameters& parameters) { return std::make_unique<Made>(parameters, options); };
}

std::vector<OptimizerKind> optimizers() {
  using namespace torch::optim;
  return {
      {"SGD", maker<SGD>(SGDOptions(0.1)), {}},
      {"SGD", maker<SGD>(SGDOptions(0.1).momentum(0.9)), {"momentum"}},
      {"Adam", maker<Adam>(AdamOptions(0.01)), {"step", "exp_avg", "exp_avg_sq"}},
      {"Adam",
       maker<Adam>(AdamOptions(0.01).amsgrad(true)),
       {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
      {"AdamW", maker<AdamW>(AdamWOptions(0.01)), {"step", "exp_avg", "exp_avg_sq"}},
      {"RMSprop", maker<RMSprop>(RMSpropOptions(0.01)), {"step", "square_avg"}},
      {"RMSprop",
       maker<RMSprop>(RMSpropOptions(0.01).momentum(0.9).centered(true)),
       {"step", "square_avg", "momentum_buffer", "grad_avg"}},
      {"Adagrad", maker<Adagrad>(AdagradOptions(0.01)), {"step", "sum"}},
  };
}

/// A module, its optimizer and a step that is a function of its number.
struct TrainedBy {
  TrainedBy(uint64_t seed, const OptimizerKind& kind)
      : model(make_tiny(seed)), optimizer(kind.make(model->parameters())) {}
  void step(int64_t number) {
    const at::Tensor images = at::full({2, 3, 4, 4}, 0.1 * static_cast<double>(number)).cumsum(3);
    model->forward(images).square().mean().backward();
    optimizer->step();
    optimizer->zero_grad();
  }
  std::shared_ptr<TinySegmenter> model;
  std::unique_ptr<Optimizer> optimizer;
};

TEST(OptimizerState, AResumedRunOfEachOptimizerHasTheBytesOfAnUnbrokenOne) {
  for (const OptimizerKind& kind : optimizers()) {
    SCOPED_TRACE(kind.name + " with " + std::to_string(kind.fields.size()) + " fields");
    const TemporaryFolder folder;
    TrainedBy unbroken(1, kind), first(1, kind), second(2, kind);
    at::manual_seed(1);
    for (int64_t i = 0; i < 6; ++i) unbroken.step(i);
    save_checkpoint(folder / "unbroken", *unbroken.model, *unbroken.optimizer, {.step = 6});

    at::manual_seed(1);
    for (int64_t i = 0; i < 3; ++i) first.step(i);
    save_checkpoint(folder / "broken", *first.model, *first.optimizer, {.step = 3});
    second.step(99);  // a state of its own, which the checkpoint replaces
    EXPECT_EQ(load_checkpoint(folder / "broken", *second.model, *second.optimizer).step, 3);
    for (int64_t i = 3; i < 6; ++i) second.step(i);
    save_checkpoint(folder / "broken", *second.model, *second.optimizer, {.step = 6});
    EXPECT_TRUE(io::read_file(folder / "broken") == io::read_file(folder / "unbroken"));
  }
}

TEST(OptimizerState, IsNamedByFieldAndParameter) {
  for (const OptimizerKind& kind : optimizers()) {
    SCOPED_TRACE(kind.name);
    TrainedBy trained(1, kind);
    trained.step(1);
    EXPECT_EQ(optimizer_name(*trained.optimizer), kind.name);
    std::vector<std::string> want, got;
    for (const char* parameter : {"conv1.weight", "bn1.weight", "bn1.bias", "conv2.weight", "conv2.bias"})
      for (const auto& field : kind.fields) want.push_back(field + "." + parameter);
    for (const auto& [name, tensor] : optimizer_state(*trained.optimizer, *trained.model))
      got.push_back(name);
    EXPECT_EQ(got, want);
  }
}

TEST(OptimizerState, OneThatCannotBeSavedIsAClearError) {
  const TemporaryFolder folder;
  const auto model = make_tiny(1);
  torch::optim::LBFGS lbfgs(model->parameters());
  expect_error(ErrorKind::kUsage, {"SGD, Adam, AdamW, RMSprop or Adagrad", "save the model alone"},
               [&] { save_checkpoint(folder / "a", *model, lbfgs, {}); });
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));

  torch::nn::Linear other(2, 2);
  auto parameters = model->parameters();
  parameters.push_back(other->weight);
  torch::optim::Adam both(parameters);
  expect_error(ErrorKind::kUsage, {"all parameters of the optimizer, got 5 of 6"},
               [&] { save_checkpoint(folder / "a", *model, both, {}); });
}

TEST(OptimizerState, AnotherOptimizerCannotContinueARun) {
  const TemporaryFolder folder;
  const auto all = optimizers();
  TrainedBy sgd(1, all[1]), adam(1, all[2]);
  save_checkpoint(folder / "sgd", *sgd.model, *sgd.optimizer, {});
  save_checkpoint(folder / "adam", *adam.model, *adam.optimizer, {});
  expect_error(ErrorKind::kCheckpoint, {"the optimizer SGD, this run has Adam", "use SGD", "load_weights"},
               [&] { load_checkpoint(folder / "sgd", *adam.model, *adam.optimizer); });
  expect_error(ErrorKind::kCheckpoint, {"the optimizer Adam, this run has SGD"},
               [&] { load_checkpoint(folder / "adam", *sgd.model, *sgd.optimizer); });
}

TEST(OptimizerState, FieldsThatTheOptimizerNeedsMustBeThere) {
  const TemporaryFolder folder;
  const auto all = optimizers();
  TrainedBy plain(1, all[2]), amsgrad(1, all[3]);
  plain.step(1);
  save_checkpoint(folder / "plain", *plain.model, *plain.optimizer, {});
  expect_error(ErrorKind::kCheckpoint,
               {"does not fit the optimizer: 5 missing keys (palimpsest.max_exp_avg_sq.conv1.weight, ",
                "options that the optimizer was made with", "load_weights"},
               [&] { load_checkpoint(folder / "plain", *amsgrad.model, *amsgrad.optimizer); });

  auto file = io::read_safetensors(folder / "plain");
  for (auto& [name, tensor] : file.tensors)
    if (name == "palimpsest.step.bn1.bias") tensor = at::ones({2}, at::kLong);
  io::write_safetensors(folder / "spoiled", file);
  expect_error(ErrorKind::kCheckpoint, {"palimpsest.step.bn1.bias is (2) instead of ()"},
               [&] { load_checkpoint(folder / "spoiled", *plain.model, *plain.optimizer); });
}

TEST(OptimizerState, OfParametersThatTheOptimizerDoesNotHoldIsIgnored) {
  for (const OptimizerKind& kind : optimizers()) {
    SCOPED_TRACE(kind.name);
    const TemporaryFolder folder;
    TrainedBy all(1, kind), head(2, kind);
    all.step(1);
    save_checkpoint(folder / "all", *all.model, *all.optimizer, {.step = 1});
    head.optimizer = kind.make(head.model->conv2->parameters());
    EXPECT_EQ(load_checkpoint(folder / "all", *head.model, *head.optimizer).step, 1);
    EXPECT_EQ(optimizer_state(*head.optimizer, *head.model).size(), 2 * kind.fields.size());
    EXPECT_TRUE(head.model->conv1->weight.equal(all.model->conv1->weight));
  }
}

TEST(OptimizerState, ThatTheOptionsDoNotUseIsLoadedAndNotRead) {
  const auto all = optimizers();
  for (const auto& [with, without] : {std::pair{1, 0}, {3, 2}, {6, 5}}) {
    SCOPED_TRACE(all[with].name);
    const TemporaryFolder folder;
    TrainedBy saved(1, all[with]), loaded(2, all[without]);
    saved.step(1);
    save_checkpoint(folder / "a", *saved.model, *saved.optimizer, {});
    load_checkpoint(folder / "a", *loaded.model, *loaded.optimizer);
    save_checkpoint(folder / "b", *loaded.model, *loaded.optimizer, {});
    EXPECT_TRUE(io::read_file(folder / "a") == io::read_file(folder / "b"));
    loaded.step(2);
  }
}

TEST(OptimizerState, AModuleAndAnOptimizerOfLibtorchAreEnoughForACheckpoint) {
  const TemporaryFolder folder;
  torch::nn::Linear net(2, 2), other(2, 2);
  torch::optim::SGD sgd(net->parameters(), 0.1), other_sgd(other->parameters(), 0.1);
  save_checkpoint(folder / "a", *net, sgd, {});
  EXPECT_FALSE(read_checkpoint_metadata(folder / "a").contains("epoch")) << "the file names no epoch";
  EXPECT_EQ(load_checkpoint(folder / "a", *other, other_sgd).batches_per_epoch, 0);
  EXPECT_TRUE(other->weight.equal(net->weight));
}

}  // namespace
}  // namespace palimpsest::train
