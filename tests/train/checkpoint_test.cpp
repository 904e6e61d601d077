#include "palimpsest/train/checkpoint.h"

#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/safetensors.h"
#include "palimpsest/nn/state_dict.h"
#include "palimpsest/train/loss.h"
#include "palimpsest/train/optimizer.h"
#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

namespace palimpsest::train {
namespace {

using testing::expect_equal;
using testing::expect_error;
using testing::make_tiny;
using testing::TemporaryFolder;
using testing::TinySegmenter;

const RunState kState{7,
                      5,
                      4,
                      11,
                      {{"config", "[model]\nname = \"tiny\"\n"}, {"strategy", "inplace_2"}},
                      "f16",
                      {{{512, 3, 1}, 2, false}}};

/// A model, its optimizer and one step behind them, so that there is momentum.
struct Trained {
  explicit Trained(uint64_t seed, int64_t classes = 3)
      : model(make_tiny(seed, classes)), sgd(make_sgd(*model, {})) {
    loss(model->forward(at::randn({2, 3, 4, 4})), at::zeros({2, 4, 4}, at::kLong), {}).backward();
    sgd.step();
  }
  at::Tensor momentum(const at::Tensor& parameter) const {
    return static_cast<torch::optim::SGDParamState&>(*sgd.state().at(parameter.unsafeGetTensorImpl()))
        .momentum_buffer();
  }
  std::shared_ptr<TinySegmenter> model;
  torch::optim::SGD sgd;
};

/// Everything in `model`, to see that a failed load changed nothing.
std::vector<at::Tensor> copies(const torch::nn::Module& model) {
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : nn::state_dict(model)) result.push_back(tensor.detach().clone());
  return result;
}

TEST(Checkpoint, LoadingRestoresParametersBuffersMomentumGeneratorAndState) {
  const TemporaryFolder folder;
  const auto path = folder / "checkpoint.safetensors";
  Trained saved(1), loaded(2);
  save_checkpoint(path, *saved.model, saved.sgd, kState);
  const at::Tensor drawn = at::randn({20});  // the generator's next numbers

  const RunState state = load_checkpoint(path, *loaded.model, loaded.sgd);
  EXPECT_TRUE(at::randn({20}).equal(drawn));
  expect_equal(copies(*loaded.model), copies(*saved.model));
  EXPECT_TRUE(loaded.momentum(loaded.model->conv1->weight).equal(saved.momentum(saved.model->conv1->weight)));
  EXPECT_EQ(loaded.sgd.state().size(), saved.sgd.state().size());
  EXPECT_EQ(state.step, 7);
  EXPECT_EQ(state.batches_per_epoch, 5);
  EXPECT_EQ(state.batch_size, 4);
  EXPECT_EQ(state.seed, 11u);
  EXPECT_EQ(state.metadata, kState.metadata);
  EXPECT_EQ(state.precision, "f16");
  ASSERT_TRUE(state.scaling);
  EXPECT_EQ(state.scaling->scaler, kState.scaling->scaler);
  EXPECT_EQ(state.scaling->skipped_steps, 2);
  EXPECT_FALSE(state.scaling->choose);

  const auto metadata = read_checkpoint_metadata(path);
  EXPECT_EQ(metadata.at("epoch"), "1");
  EXPECT_EQ(metadata.at("batch"), "2");
  EXPECT_EQ(metadata.at("strategy"), "inplace_2");
}

TEST(Checkpoint, SavingWhatWasLoadedGivesTheSameBytes) {
  const TemporaryFolder folder;
  Trained saved(1), loaded(2);
  save_checkpoint(folder / "a", *saved.model, saved.sgd, kState);
  save_checkpoint(folder / "b", *loaded.model, loaded.sgd,
                  load_checkpoint(folder / "a", *loaded.model, loaded.sgd));
  EXPECT_EQ(io::read_file(folder / "a"), io::read_file(folder / "b"));
}

TEST(Checkpoint, KeepsAnEntryOptimizerOfTheUser) {
  const TemporaryFolder folder;
  Trained saved(1), loaded(2);
  save_checkpoint(folder / "a", *saved.model, saved.sgd, {.metadata = {{"optimizer", "mine"}}});
  EXPECT_EQ(load_checkpoint(folder / "a", *loaded.model, loaded.sgd).metadata.at("optimizer"), "mine");
}

TEST(Checkpoint, ReservedNamesInTheMetadataAreErrors) {
  const TemporaryFolder folder;
  const Trained run(1);
  for (const char* name : {"step", "epoch", "format", "palimpsest_optimizer", "choose_scale"}) {
    expect_error(ErrorKind::kUsage, {"'" + std::string(name) + "'", "another name"},
                 [&] { save_checkpoint(folder / "a", *run.model, run.sgd, {.metadata = {{name, "mine"}}}); });
    EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  }
}

TEST(Checkpoint, OneMadeOnAGpuGoesOnOnTheProcessor) {
  const TemporaryFolder folder;
  const Trained saved(1);
  save_checkpoint(folder / "a", *saved.model, saved.sgd, kState);
  auto file = io::read_safetensors(folder / "a");
  file.tensors.emplace_back("palimpsest.generator.cuda", at::zeros({16}, at::kByte));
  io::write_safetensors(folder / "b", file);
  Trained loaded(2);
  EXPECT_EQ(load_checkpoint(folder / "b", *loaded.model, loaded.sgd).step, kState.step);
  expect_equal(copies(*loaded.model), copies(*saved.model));
}

TEST(Checkpoint, BeginsWithAnOrdinaryStateDictInModuleOrder) {
  const TemporaryFolder folder;
  const Trained saved(1);
  save_checkpoint(folder / "a", *saved.model, saved.sgd, kState);
  const auto file = io::read_safetensors(folder / "a");
  const std::vector<std::string> expected{"conv1.weight",     "bn1.weight",      "bn1.bias",
                                          "bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked",
                                          "conv2.weight",     "conv2.bias"};
  ASSERT_GE(file.tensors.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(file.tensors[i].first, expected[i]);
}

TEST(Checkpoint, WeightsAloneLoadFromACheckpointAndFromAPlainStateDictInAnyDtype) {
  const TemporaryFolder folder;
  Trained saved(1);
  save_checkpoint(folder / "full", *saved.model, saved.sgd, kState);
  io::Safetensors plain;
  for (const auto& [name, tensor] : nn::state_dict(*saved.model))
    if (!name.ends_with("num_batches_tracked")) plain.tensors.emplace_back(name, tensor.detach());
  io::write_safetensors(folder / "plain", plain);
  for (const char* file : {"full", "plain"}) {
    const auto model = make_tiny(2);
    const int64_t counted = model->bn1->num_batches_tracked.item<int64_t>();
    load_weights(folder / file, *model);
    EXPECT_TRUE(model->conv1->weight.equal(saved.model->conv1->weight)) << file;
    EXPECT_TRUE(model->bn1->running_mean.equal(saved.model->bn1->running_mean)) << file;
    if (std::string(file) == "plain") {
      EXPECT_EQ(model->bn1->num_batches_tracked.item<int64_t>(), counted);
    }

    const auto wide = make_tiny(3);
    wide->to(at::kDouble);
    load_weights(folder / file, *wide);
    EXPECT_TRUE(wide->conv1->weight.detach().equal(saved.model->conv1->weight.detach().to(at::kDouble)))
        << file;
  }
}

TEST(Checkpoint, AnotherArchitectureIsAnErrorThatCountsAndNamesTheKeysAndChangesNothing) {
  const TemporaryFolder folder;
  Trained saved(1, /*classes=*/5), other(2);
  save_checkpoint(folder / "a", *saved.model, saved.sgd, kState);
  const auto before = copies(*other.model);
  const std::vector<std::string> parts{"conv2.weight is (5, 8, 1, 1) instead of (3, 8, 1, 1)", "conv2.bias"};
  expect_error(ErrorKind::kCheckpoint, parts, [&] { load_weights(folder / "a", *other.model); });
  expect_error(ErrorKind::kCheckpoint, parts,
               [&] { load_checkpoint(folder / "a", *other.model, other.sgd); });
  expect_equal(copies(*other.model), before);

  testing::TinyClassifier classifier;
  auto sgd = make_sgd(classifier, {});
  expect_error(ErrorKind::kCheckpoint,
               {"8 missing keys (conv.weight, conv.bias, bn.weight, ...)", "unexpected keys (bn1.bias, "},
               [&] { load_checkpoint(folder / "a", classifier, sgd); });
  expect_error(ErrorKind::kCheckpoint, {"7 unexpected keys"},
               [&] { load_weights(folder / "a", classifier); });
}

TEST(Checkpoint, AnotherDtypeCannotBeResumed) {
  const TemporaryFolder folder;
  Trained saved(1);
  save_checkpoint(folder / "a", *saved.model, saved.sgd, kState);
  const auto wide = make_tiny(2);
  wide->to(at::kDouble);
  auto sgd = make_sgd(*wide, {});
  expect_error(ErrorKind::kCheckpoint, {"conv1.weight is float32 instead of float64"},
               [&] { load_checkpoint(folder / "a", *wide, sgd); });
}

TEST(Checkpoint, MissingTruncatedAndForeignFilesAreErrorsThatNameThem) {
  const TemporaryFolder folder;
  Trained run(1);
  save_checkpoint(folder / "whole", *run.model, run.sgd, kState);
  const std::string bytes = io::read_file(folder / "whole");
  const auto before = copies(*run.model);
  const auto fails = [&](const std::string& name, const std::string& says = "") {
    expect_error(ErrorKind::kCheckpoint, {name, says},
                 [&] { load_checkpoint(folder / name, *run.model, run.sgd); });
    expect_error(ErrorKind::kCheckpoint, {name}, [&] { load_weights(folder / name, *run.model); });
    expect_error(ErrorKind::kCheckpoint, {name, says}, [&] { read_checkpoint_metadata(folder / name); });
  };
  fails("missing");
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{5}, std::size_t{100}, bytes.size() / 2, bytes.size() - 1}) {
    std::ofstream(folder / "truncated", std::ios::binary) << bytes.substr(0, length);
    fails("truncated");
  }
  std::ofstream(folder / "foreign") << "PK\x03\x04 as the files of torch.save begin";
  fails("foreign", "it is a file of torch.save");
  expect_equal(copies(*run.model), before);
}

TEST(Checkpoint, WeightsWithoutTrainingStateCannotBeResumed) {
  const TemporaryFolder folder;
  Trained run(1);
  io::Safetensors plain;
  for (const auto& [name, tensor] : nn::state_dict(*run.model))
    plain.tensors.emplace_back(name, tensor.detach());
  io::write_safetensors(folder / "plain", plain);
  expect_error(ErrorKind::kCheckpoint, {"plain", "no training state"},
               [&] { load_checkpoint(folder / "plain", *run.model, run.sgd); });
}

/// Saves a checkpoint, lets `change` spoil it, and expects an error that holds `parts`.
void expect_spoiled(const std::function<void(io::Safetensors&)>& change,
                    const std::vector<std::string>& parts) {
  const TemporaryFolder folder;
  Trained run(1);
  save_checkpoint(folder / "a", *run.model, run.sgd, kState);
  auto file = io::read_safetensors(folder / "a");
  change(file);
  io::write_safetensors(folder / "b", file);
  const auto before = copies(*run.model);
  expect_error(ErrorKind::kCheckpoint, parts, [&] { load_checkpoint(folder / "b", *run.model, run.sgd); });
  expect_equal(copies(*run.model), before);
}

TEST(Checkpoint, SpoiledTrainingStateIsAnErrorThatSaysWhat) {
  expect_spoiled([](auto& f) { f.metadata["step"] = "7x"; }, {"'step'", "'7x'"});
  expect_spoiled([](auto& f) { f.metadata.erase("seed"); }, {"'seed'"});
  expect_spoiled([](auto& f) { f.metadata["palimpsest_checkpoint"] = "9"; }, {"format '9'", "format 1"});
  expect_spoiled(
      [](auto& f) { f.tensors.emplace_back("palimpsest.momentum.nowhere", at::zeros({1})); },
      {"does not fit the optimizer: 1 unexpected key (palimpsest.momentum.nowhere)", "load_weights"});
  expect_spoiled(
      [](auto& f) {
        std::erase_if(f.tensors, [](const auto& t) { return t.first == "palimpsest.generator"; });
      },
      {"lacks the state of libtorch's generator"});
  const auto replace = [](io::Safetensors& f, const std::string& name, const at::Tensor& value) {
    for (auto& [key, tensor] : f.tensors)
      if (key == name) tensor = value;
  };
  expect_spoiled([&](auto& f) { replace(f, "palimpsest.momentum.conv2.bias", at::zeros({4})); },
                 {"palimpsest.momentum.conv2.bias is (4) instead of (3)"});
  expect_spoiled([&](auto& f) { replace(f, "palimpsest.generator", at::zeros({3}, at::kByte)); },
                 {"generator"});
}

TEST(Checkpoint, ValuesThatAreNotFiniteAreNotSavedAndTheOldFileStays) {
  const TemporaryFolder folder;
  Trained run(1);
  save_checkpoint(folder / "a", *run.model, run.sgd, kState);
  const std::string before = io::read_file(folder / "a");
  {
    const at::NoGradGuard no_grad;
    run.model->bn1->running_var[2] = std::numeric_limits<float>::infinity();
  }
  expect_error(ErrorKind::kDiverged, {"bn1.running_var", "step 7"},
               [&] { save_checkpoint(folder / "a", *run.model, run.sgd, kState); });
  EXPECT_EQ(io::read_file(folder / "a"), before);
}

}  // namespace
}  // namespace palimpsest::train
