#include "palimpsest/train/trainer.h"

#include "palimpsest/train/checkpoint.h"
#include "tests/train/run.h"

#include <gtest/gtest.h>

#include <csignal>
#include <stdexcept>

namespace palimpsest::train {
namespace {

using namespace testing;

struct Killed : std::runtime_error {
  Killed() : std::runtime_error("killed") {}
};

/// Ends a run in the middle of a step without letting it save, as SIGKILL would.
void kill_at_step(TinyRun& run, int64_t step, const TrainerOptions& options) {
  run.at_step(step, [](const at::Tensor&) -> at::Tensor { throw Killed(); });
  EXPECT_THROW(run.train(options), Killed);
}

/// Stops a run with a signal that arrives in the middle of `step`.
TrainingOutcome stop_at_step(TinyRun& run, int64_t step, const TrainerOptions& options) {
  run.at_step(step, [&run](const at::Tensor& logits) {
    run.stop = SIGTERM;
    return logits;
  });
  return run.train(options);
}

TrainerOptions resuming(TrainerOptions options) {
  options.resume = true;
  return options;
}

/// Compares a resumed run with the unbroken one in `reference`.
void expect_as_unbroken(const std::filesystem::path& output, const std::filesystem::path& reference,
                        const std::string& what) {
  EXPECT_TRUE(checkpoint_bytes(output) == checkpoint_bytes(reference)) << what;
  EXPECT_EQ(reproducible_log(output), reproducible_log(reference)) << what;
}

class TrainerResumeInFormats : public ::testing::TestWithParam<std::pair<std::string, bool>> {
 protected:
  TrainerOptions options(const std::string& name) const {
    auto result = tiny_options(folder_ / name);
    result.dtype = GetParam().first;
    result.channels_last = GetParam().second;
    return result;
  }
  const TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Formats, TrainerResumeInFormats,
                         ::testing::Values(std::pair{"f32", false}, std::pair{"f32", true},
                                           std::pair{"f64", false}));

TEST_P(TrainerResumeInFormats, AfterASignalInAnyStepGivesTheBytesOfAnUnbrokenRun) {
  TinyRun unbroken;
  unbroken.train(options("unbroken"));
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto name = "step" + std::to_string(step);
    TinyRun first;
    const auto stopped = stop_at_step(first, step, options(name));
    EXPECT_EQ(stopped.signal, SIGTERM);
    EXPECT_EQ(stopped.steps.size(), static_cast<std::size_t>(step)) << "the step is finished, no other begun";

    TinyRun second(/*model_seed=*/99, /*workers=*/1);  // other weights: all must come from the checkpoint
    const auto resumed = second.train(resuming(options(name)));
    EXPECT_EQ(resumed.signal, 0);
    EXPECT_EQ(resumed.steps.size(), static_cast<std::size_t>(kSteps - step));
    expect_as_unbroken(folder_ / name, folder_ / "unbroken", name);
  }
}

TEST_P(TrainerResumeInFormats, AfterAKillInAnyStepGivesTheBytesOfAnUnbrokenRun) {
  auto reference = options("unbroken");
  reference.checkpoint_every = 2;
  TinyRun unbroken;
  unbroken.train(reference);
  for (int64_t step = 1; step <= kSteps; ++step) {
    auto killed = options("step" + std::to_string(step));
    killed.checkpoint_every = 2;
    TinyRun first;
    kill_at_step(first, step, killed);
    TinyRun second(99);
    second.train(resuming(killed));
    expect_as_unbroken(killed.output, reference.output, "killed in step " + std::to_string(step));
  }
}

TEST(TrainerResume, AfterManyStopsGivesTheBytesOfAnUnbrokenRun) {
  const TemporaryFolder folder;
  TinyRun unbroken;
  unbroken.train(tiny_options(folder / "unbroken"));
  auto options = tiny_options(folder / "broken");
  for (int64_t step = 1; step <= kSteps; ++step) {
    TinyRun run(static_cast<uint64_t>(step));
    stop_at_step(run, 1, options);
    options.resume = true;
  }
  TinyRun last(99);
  EXPECT_TRUE(last.train(options).steps.empty());
  // Its first weights are those of seed 1, as the unbroken run's.
  expect_as_unbroken(folder / "broken", folder / "unbroken", "stopped after every step");
}

TEST(TrainerResume, AnEvaluationThatASignalCutShortIsMadeUpForOnce) {
  const TemporaryFolder folder;
  TinyRun unbroken;
  unbroken.train(tiny_options(folder / "unbroken"));
  for (const int64_t evaluation : {1, 2}) {
    const auto options = tiny_options(folder / std::to_string(evaluation));
    TinyRun first;
    int64_t forwards = 0;
    first.model->hook = [&](TinySegmenter& model, const at::Tensor& logits) {
      if (!model.is_training() && ++forwards == 2 * evaluation - 1) first.stop = SIGINT;  // 2 batches each
      return logits;
    };
    const auto stopped = first.train(options);
    EXPECT_EQ(stopped.signal, SIGINT);
    EXPECT_EQ(stopped.evaluations.size(), static_cast<std::size_t>(evaluation - 1));
    TinyRun second(99);
    EXPECT_EQ(second.train(resuming(options)).evaluations.size(), static_cast<std::size_t>(3 - evaluation));
    expect_as_unbroken(options.output, folder / "unbroken", "evaluation " + std::to_string(evaluation));
  }
}

TEST(TrainerResume, ARunThatEndedAtMaxStepsGoesOnWithALargerOne) {
  const TemporaryFolder folder;
  TinyRun unbroken;
  unbroken.train(tiny_options(folder / "unbroken"));
  auto options = tiny_options(folder / "run");
  options.max_steps = 3;
  TinyRun first, second(99);
  first.train(options);
  options.max_steps = 0;
  second.train(resuming(options));
  EXPECT_TRUE(checkpoint_bytes(folder / "run") == checkpoint_bytes(folder / "unbroken"));
}

TEST(TrainerResume, AFinishedRunHasNothingLeftToDo) {
  const TemporaryFolder folder;
  const auto options = tiny_options(folder / "run");
  TinyRun first, second(99);
  first.train(options);
  const auto bytes = checkpoint_bytes(folder / "run");
  const auto outcome = second.train(resuming(options));
  EXPECT_TRUE(outcome.steps.empty() && outcome.evaluations.empty());
  EXPECT_TRUE(checkpoint_bytes(folder / "run") == bytes);
  EXPECT_TRUE(second.model->conv1->weight.equal(first.model->conv1->weight))
      << "the caller gets the trained model";
}

TEST(TrainerResume, ASignalBeforeTheFirstStepLeavesARunToResume) {
  const TemporaryFolder folder;
  TinyRun unbroken, first, second(99);
  unbroken.train(tiny_options(folder / "unbroken"));
  first.stop = SIGINT;
  const auto options = tiny_options(folder / "run");
  EXPECT_TRUE(first.train(options).steps.empty());
  second.train(resuming(options));
  expect_as_unbroken(folder / "run", folder / "unbroken", "stopped before the first step");
}

TEST(TrainerResume, OtherSeedsBatchesOrModelsAreErrorsThatSayWhatDiffers) {
  const TemporaryFolder folder;
  const auto options = tiny_options(folder / "run");
  TinyRun run;
  run.train(options);
  const auto bytes = checkpoint_bytes(folder / "run");
  const auto fails = [&](ErrorKind kind, const std::vector<std::string>& parts, int64_t images,
                         data::LoaderOptions loader_options, int64_t classes = 3) {
    const auto model = make_tiny(1, classes);
    data::Loader loader(std::make_shared<BrightestColor>(images, 6), loader_options);
    const std::atomic<int> stop{0};
    expect_error(kind, parts, [&] { train(*model, loader, nullptr, resuming(options), stop); });
  };
  auto other_seed = loader_options(4);
  other_seed.seed = 12;
  fails(ErrorKind::kUsage, {"seed 11", "has 12"}, 20, other_seed);
  fails(ErrorKind::kUsage, {"batch size 4", "has 5"}, 25, loader_options(5));
  fails(ErrorKind::kUsage, {"batches per epoch 5", "has 6"}, 24, loader_options(4));
  fails(ErrorKind::kCheckpoint, {"conv2.weight"}, 20, loader_options(4), /*classes=*/4);
  EXPECT_TRUE(checkpoint_bytes(folder / "run") == bytes);
  EXPECT_EQ(read_log(folder / "run").back()["step"], kSteps) << "the log was not touched";
}

/// The noise of BrightestColor under another name.
class NamedNoise : public BrightestColor {
 public:
  NamedNoise(int64_t size, std::string identity) : BrightestColor(size, 6), identity_(std::move(identity)) {}
  std::string identity() const override { return identity_; }

 private:
  std::string identity_;
};

TEST(TrainerResume, OtherExamplesOrAnotherOrderAreErrors) {
  const TemporaryFolder folder;
  auto options = tiny_options(folder / "run");
  options.max_steps = 1;
  const auto run = [&](const std::string& identity, data::LoaderOptions loader_options, bool resume) {
    const auto model = make_tiny(1);
    data::Loader loader(std::make_shared<NamedNoise>(20, identity), loader_options);
    train(*model, loader, nullptr, resume ? resuming(options) : options);
  };
  run("20 images (a)", loader_options(4), /*resume=*/false);
  const auto bytes = checkpoint_bytes(folder / "run");
  expect_error(ErrorKind::kUsage, {"20 images (a)", "this run reads 20 images (b)", "names and sizes"},
               [&] { run("20 images (b)", loader_options(4), true); });
  auto old_order = loader_options(4);
  old_order.shuffle_stream = data::ShuffleStream::kOfTheFirstExample;
  expect_error(ErrorKind::kUsage, {"order own_stream", "has first_example_stream"},
               [&] { run("20 images (a)", old_order, true); });
  EXPECT_TRUE(checkpoint_bytes(folder / "run") == bytes);
  options.max_steps = 2;
  run("", loader_options(4), true);  // examples of unknown identity are not compared
}

TEST(TrainerResume, ARunWithTheOrderOfOlderProgramsNamesNoOrder) {
  const TemporaryFolder folder;
  const auto options = tiny_options(folder / "run");
  const auto metadata = [&] { return read_checkpoint_metadata(folder / "run/checkpoint.safetensors"); };
  TinyRun run;
  run.train(options);
  EXPECT_EQ(metadata().at("palimpsest_order"), "own_stream");
  auto old_order = loader_options(4);
  old_order.shuffle_stream = data::ShuffleStream::kOfTheFirstExample;
  data::Loader loader(std::make_shared<BrightestColor>(20, 6), old_order);
  train(*make_tiny(1), loader, nullptr, options);
  EXPECT_FALSE(metadata().contains("palimpsest_order"));
  train(*make_tiny(2), loader, nullptr, resuming(options));
}

TEST(TrainerResume, WritesItsConfigurationOnlyAfterACheckpoint) {
  const TemporaryFolder folder;
  auto options = tiny_options(folder / "run");
  options.config_file = "[train]\nthreads = 1\n";
  TinyRun first;
  first.train(options);
  const auto text = [&] { return io::read_file(folder / "run/config.toml"); };
  EXPECT_EQ(text(), options.config_file);
  auto other = resuming(options);
  other.config_file = "[train]\nthreads = 2\n";
  TinyRun finished(99);
  finished.train(other);
  EXPECT_EQ(text(), options.config_file) << "nothing was left to do";
  other.epochs = 3;
  TinyRun killed(99);
  kill_at_step(killed, 1, other);
  EXPECT_EQ(text(), options.config_file) << "no checkpoint was saved";
  TinyRun longer(99);
  longer.train(other);
  EXPECT_EQ(text(), other.config_file);
}

TEST(TrainerResume, WithoutACheckpointIsAnErrorThatNamesIt) {
  const TemporaryFolder folder;
  TinyRun run;
  expect_error(ErrorKind::kCheckpoint, {"checkpoint.safetensors"},
               [&] { run.train(resuming(tiny_options(folder / "nothing"))); });
}

}  // namespace
}  // namespace palimpsest::train
