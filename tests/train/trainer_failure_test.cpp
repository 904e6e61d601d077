#include "palimpsest/train/trainer.h"

#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/train/checkpoint.h"
#include "tests/train/run.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

namespace palimpsest::train {
namespace {

using namespace testing;

std::string saved_step(const std::filesystem::path& output) {
  return read_checkpoint_metadata(output / "checkpoint.safetensors").at("step");
}

/// The checkpoint in `output` loads, and training goes on from it.
void expect_resumable(TrainerOptions options) {
  options.resume = true;
  TinyRun run(99);
  EXPECT_FALSE(run.train(options).steps.empty());
}

TEST(TrainerFailure, ALossThatIsNotANumberStopsTheRunAndTheLastGoodCheckpointStays) {
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const TemporaryFolder folder;
    const auto options = tiny_options(folder / "run");
    TinyRun run;
    run.at_step(8, [poison](const at::Tensor& logits) { return logits * poison; });
    expect_error(ErrorKind::kDiverged,
                 {"step 8", "epoch 2", "checkpoint.safetensors of step 5 stays", "lower lr"},
                 [&] { run.train(options); });
    EXPECT_EQ(saved_step(folder / "run"), "5");
    const auto log = read_log(folder / "run");
    EXPECT_EQ(log.at(log.size() - 2)["step"], 6);
    EXPECT_EQ(log.back()["type"], "end");
    EXPECT_EQ(log.back()["step"], 7);  // done
    EXPECT_NE(log.back()["reason"].get<std::string>().find("diverged: the loss became"), std::string::npos);
    expect_resumable(options);
    for (const auto& line : read_log(folder / "run")) EXPECT_NE(line["type"], "end");
  }
}

TEST(TrainerFailure, ACheckpointWhoseEvaluationWasNotFiniteIsNotCalledGood) {
  const TemporaryFolder folder;
  TinyRun run;
  run.model->hook = [](TinySegmenter& model, const at::Tensor& logits) {
    const bool bad = !model.is_training() || model.training_steps > kBatches;
    return bad ? logits * std::numeric_limits<float>::quiet_NaN() : logits;
  };
  expect_error(ErrorKind::kDiverged, {"step 6", "of step 5 stays, but its evaluation was not finite already"},
               [&] { run.train(tiny_options(folder / "run")); });
}

TEST(TrainerFailure, AGradientThatIsNotANumberDoesNotReachTheCheckpoint) {
  const TemporaryFolder folder;
  auto options = tiny_options(folder / "run");
  options.checkpoint_every = 1;
  TinyRun run;
  // The loss stays finite: 0 * sqrt(0), whose derivative is 0 * infinity.
  run.at_step(3, [&](const at::Tensor& logits) {
    const at::Tensor zero = run.model->conv1->weight - run.model->conv1->weight.detach();
    return logits + (zero.sqrt() * 0).sum();
  });
  expect_error(ErrorKind::kDiverged, {"conv1.weight", "step 3"}, [&] { run.train(options); });
  EXPECT_EQ(saved_step(folder / "run"), "2");
  expect_resumable(options);
}

TEST(TrainerFailure, ADiskThatIsFullWhenACheckpointIsSavedIsAnErrorAndTheOldOneStays) {
  const TemporaryFolder folder;
  const auto options = tiny_options(folder / "run");
  TinyRun run;
  std::optional<FileSizeLimit> full;
  run.at_step(3, [&](const at::Tensor& logits) {
    // Room for the checkpoint of step 0 but not for one with momentum.
    full.emplace(std::filesystem::file_size(folder / "run" / "checkpoint.safetensors") + 100);
    return logits;
  });
  expect_error(ErrorKind::kOutput, {"checkpoint.safetensors"}, [&] { run.train(options); });
  full.reset();
  EXPECT_EQ(saved_step(folder / "run"), "0");
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run"))
    EXPECT_TRUE(entry.path().filename() == "checkpoint.safetensors" ||
                entry.path().filename() == "log.jsonl" || entry.path().filename() == "config.toml" ||
                entry.path().filename() == "step_memory.safetensors")
        << "left behind: " << entry.path();
  expect_resumable(options);
}

TEST(TrainerFailure, AnOutputFolderThatCannotBeWrittenIsAnErrorBeforeTheFirstStep) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "a regular file";
  TinyRun run;
  expect_error(ErrorKind::kOutput, {"file"}, [&] { run.train(tiny_options(folder / "file" / "run")); });
  EXPECT_EQ(run.model->training_steps, 0);
}

TEST(TrainerFailure, OutOfMemoryIsAnErrorThatSaysWhereAndWhatToDo) {
  const TemporaryFolder folder;
  auto options = tiny_options(folder / "run");
  options.checkpoint_every = 1;
  TinyRun run;
  run.at_step(3, [](const at::Tensor& logits) {
    memory::set_memory_limit(memory::memory_stats().current_bytes + 1000);
    return logits.clone();
  });
  expect_error(
      ErrorKind::kMemory,
      {"out of memory in step 3 (4 images of 3 x 6 x 6)", "smaller batch or crop", "strategy inplace"},
      [&] { run.train(options); });
  memory::set_memory_limit(0);
  EXPECT_EQ(saved_step(folder / "run"), "2");
  expect_resumable(options);
}

TEST(TrainerFailure, OutOfMemoryInTheBackwardPassIsTheSameError) {
  TinyRun run;
  run.at_step(2, [](const at::Tensor& logits) {
    at::Tensor result = logits.clone();
    result.register_hook([](const at::Tensor& gradient) {
      memory::set_memory_limit(memory::memory_stats().current_bytes + 1);
      return gradient;
    });
    return result;
  });
  expect_error(ErrorKind::kMemory, {"out of memory in step 2"}, [&] { run.train(tiny_options("")); });
  memory::set_memory_limit(0);
}

TEST(TrainerFailure, OneValuePerChannelIsAnErrorThatAsksForALargerBatchOrCrop) {
  TinyRun run;
  data::Loader loader(std::make_shared<BrightestColor>(3, 1), loader_options(1));
  expect_error(ErrorKind::kUsage,
               {"step 1 (1 image of 3 x 1 x 1)", "one value per channel", "at least 2 images", "larger crop"},
               [&] { train(*run.model, loader, nullptr, tiny_options(""), run.stop); });
}

/// A data set with a file that cannot be read.
class Unreadable : public BrightestColor {
 public:
  using BrightestColor::BrightestColor;
  data::Sample get(int64_t index, Random& random) const override {
    if (index == 7) throw Error(ErrorKind::kData, "cannot read train/0007.jpg");
    return BrightestColor::get(index, random);
  }
};

TEST(TrainerFailure, AnUnreadableImageEndsTheRunWithItsOwnError) {
  TinyRun run;
  for (const int64_t workers : {0, 2}) {
    data::Loader loader(std::make_shared<Unreadable>(20, 6), loader_options(4, workers));
    expect_error(ErrorKind::kData, {"train/0007.jpg"},
                 [&] { train(*run.model, loader, nullptr, tiny_options(""), run.stop); });
  }
}

}  // namespace
}  // namespace palimpsest::train
