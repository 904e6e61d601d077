#include "palimpsest/train/trainer.h"

#include "palimpsest/nn/inplace_abn.h"
#include "palimpsest/train/checkpoint.h"
#include "tests/train/run.h"

#include <gtest/gtest.h>

#include <cmath>

namespace palimpsest::train {
namespace {

using namespace testing;

TEST(Trainer, TheLossFallsAndTheEvaluationSeesIt) {
  TinyRun run;
  auto options = tiny_options("");
  options.epochs = 20;
  const auto outcome = run.train(options);
  ASSERT_EQ(outcome.steps.size(), 100u);
  ASSERT_EQ(outcome.evaluations.size(), 20u);
  EXPECT_LT(outcome.steps.back().loss, 0.5 * outcome.steps.front().loss);
  EXPECT_GT(outcome.evaluations.back().metrics.mean_iou, outcome.evaluations.front().metrics.mean_iou);
  EXPECT_GT(outcome.evaluations.back().metrics.pixel_accuracy, 0.8);
  EXPECT_EQ(outcome.signal, 0);
}

TEST(Trainer, AClassifierLearnsToo) {
  at::manual_seed(1);
  TinyClassifier model;
  data::Loader loader(std::make_shared<BrightestColor>(30, 6, /*segmentation=*/false), loader_options(6));
  auto options = tiny_options("");
  options.epochs = 20;
  const std::atomic<int> stop{0};
  const auto outcome = train(model, loader, &loader, options, stop);
  EXPECT_LT(outcome.steps.back().loss, 0.5 * outcome.steps.front().loss);
  EXPECT_GT(outcome.evaluations.back().metrics.top1, 0.8);
}

TEST(Trainer, RecordsWhatEachStepCost) {
  TinyRun run;
  const auto outcome = run.train(tiny_options(""));
  ASSERT_EQ(outcome.steps.size(), static_cast<std::size_t>(kSteps));
  for (int64_t i = 0; i < kSteps; ++i) {
    const auto& record = outcome.steps[i];
    EXPECT_EQ(record.step, i + 1);
    EXPECT_EQ(record.epoch, i / kBatches + 1);
    EXPECT_GT(record.seconds, 0);
    EXPECT_GE(record.data_seconds, 0);
    EXPECT_GT(record.images_per_second, 0);
    EXPECT_EQ(record.kept_bytes, outcome.steps[0].kept_bytes) << "every step keeps the same";
    EXPECT_GE(record.kept_bytes, 2 * 4 * 8 * 36 * 4) << "x and z of the normalization";
    EXPECT_GT(record.peak_bytes, record.current_bytes);
  }
  EXPECT_EQ(outcome.steps.back().eta_seconds, 0);
}

TEST(Trainer, TheLearningRateIsTheSchedules) {
  TinyRun run;
  const auto options = tiny_options("");
  for (const auto& record : run.train(options).steps)
    EXPECT_EQ(record.lr,
              learning_rate(options.schedule, options.optimizer.lr, record.step - 1, kSteps, kBatches));
}

TEST(Trainer, WritesALogTheConfigurationAndACheckpoint) {
  const TemporaryFolder folder;
  TinyRun run;
  const auto options = tiny_options(folder / "run");
  const auto outcome = run.train(options);
  EXPECT_EQ(io::read_file(folder / "run" / "config.toml"), options.config);
  std::vector<std::pair<std::string, int64_t>> lines;
  for (const auto& line : read_log(folder / "run")) lines.emplace_back(line["type"], line["step"]);
  const std::vector<std::pair<std::string, int64_t>> expected{
      {"step", 1}, {"step", 2}, {"step", 4},  {"evaluation", 5},  //
      {"step", 6}, {"step", 8}, {"step", 10}, {"evaluation", 10}};
  EXPECT_EQ(lines, expected);
  EXPECT_EQ(read_log(folder / "run")[1]["loss"].get<double>(), outcome.steps[1].loss);

  const auto metadata = read_checkpoint_metadata(folder / "run" / "checkpoint.safetensors");
  EXPECT_EQ(metadata.at("step"), "10");
  EXPECT_EQ(metadata.at("epoch"), "2");
  EXPECT_EQ(metadata.at("config"), options.config);
  EXPECT_EQ(metadata.at("strategy"), "standard");
  const auto trained = make_tiny(9);
  load_weights(folder / "run" / "checkpoint.safetensors", *trained);
  EXPECT_TRUE(trained->conv1->weight.equal(run.model->conv1->weight));
}

TEST(Trainer, EvaluatesAtTheAskedEpochsAndAtTheEnd) {
  const auto epochs = [](auto change) {
    TinyRun run;
    auto options = tiny_options("");
    options.epochs = 5;
    change(options);
    std::vector<int64_t> result;
    for (const auto& record : run.train(options).evaluations) result.push_back(record.step);
    return result;
  };
  EXPECT_EQ(epochs([](auto& o) { o.evaluate_every = 2; }), (std::vector<int64_t>{10, 20, 25}));
  EXPECT_EQ(epochs([](auto& o) { o.evaluate_every = 0; }), (std::vector<int64_t>{}));
  EXPECT_EQ(epochs([](auto& o) { o.max_steps = 7; }), (std::vector<int64_t>{5, 7}));
}

TEST(Trainer, StopsAtMaxStepsOnTheScheduleOfAllEpochs) {
  TinyRun whole, part;
  auto options = tiny_options("");
  const auto all = whole.train(options);
  options.max_steps = 3;
  const auto some = part.train(options);
  ASSERT_EQ(some.steps.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(some.steps[i].loss, all.steps[i].loss);
    EXPECT_EQ(some.steps[i].lr, all.steps[i].lr);
  }
}

TEST(Trainer, TheSameSeedGivesTheSameBytesForAnyNumberOfWorkers) {
  const TemporaryFolder folder;
  for (const int64_t workers : {0, 1, 3}) {
    TinyRun run(1, workers);
    run.train(tiny_options(folder / std::to_string(workers)));
  }
  EXPECT_EQ(checkpoint_bytes(folder / "0"), checkpoint_bytes(folder / "1"));
  EXPECT_EQ(checkpoint_bytes(folder / "0"), checkpoint_bytes(folder / "3"));
  TinyRun other;
  auto options = tiny_options(folder / "other");
  options.seed = 6;  // of the dropout
  other.train(options);
  EXPECT_NE(checkpoint_bytes(folder / "0"), checkpoint_bytes(folder / "other"));
}

/// Layers whose weight is too small to recover the normalized input.
class Degenerate : public nn::Model {
 public:
  Degenerate()
      : conv(register_module("conv", torch::nn::Conv2d(3, 3, 1))),
        abn(register_module("abn", nn::InPlaceABN(nn::InPlaceABNOptions(3)))) {
    const at::NoGradGuard no_grad;
    abn->weight.fill_(0);
    abn->bias.fill_(1);
  }
  at::Tensor forward(const at::Tensor& images) override { return abn(conv(images)); }
  bool is_segmentation() const override { return true; }
  torch::nn::Conv2d conv;
  nn::InPlaceABN abn;
};

TEST(Trainer, CountsAndTellsOfLayersThatKeptMore) {
  const TemporaryFolder folder;
  Degenerate model;
  data::Loader loader(std::make_shared<BrightestColor>(8, 6), loader_options(4));
  const std::atomic<int> stop{0};
  auto options = tiny_options(folder / "run");
  options.epochs = 1;
  options.optimizer = {.lr = 0};  // the weights stay 0
  options.quiet = false;
  ::testing::internal::CaptureStderr();
  const auto outcome = train(model, loader, nullptr, options, stop);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(outcome.steps[0].abn_fallbacks, 1);
  EXPECT_EQ(outcome.steps[1].abn_fallbacks, 2);
  EXPECT_EQ(read_log(folder / "run").back()["abn_fallbacks"], 2);
  EXPECT_NE(text.find("note: 1 layer"), std::string::npos) << text;
  EXPECT_EQ(text.find("note:"), text.rfind("note:")) << "told once";
}

TEST(Trainer, OptionsThatCannotWorkAreErrorsBeforeTheFirstStep) {
  const auto fails = [](const std::vector<std::string>& parts, auto change) {
    TinyRun run;
    auto options = tiny_options("");
    change(options);
    expect_error(ErrorKind::kUsage, parts, [&] { run.train(options); });
    EXPECT_EQ(run.model->training_steps, 0);
  };
  fails({"epochs", "at least 1", "0"}, [](auto& o) { o.epochs = 0; });
  fails({"epochs", "at most", "5 batches"}, [](auto& o) { o.epochs = int64_t{1} << 62; });
  fails({"warmup_epochs", "shorter"}, [](auto& o) { o.schedule.warmup_epochs = 1e300; });
  fails({"histogram_every", "f64", "got 2"}, [](auto& o) { o.histogram_every = 2, o.dtype = "f64"; });
  fails({"max_steps", "-1"}, [](auto& o) { o.max_steps = -1; });
  fails({"log_every", "0"}, [](auto& o) { o.log_every = 0; });
  fails({"checkpoint_every", "-1"}, [](auto& o) { o.checkpoint_every = -1; });
  fails({"evaluate_every", "-1"}, [](auto& o) { o.evaluate_every = -1; });
  fails({"dtype 'f16'"}, [](auto& o) { o.dtype = "f16"; });
  fails({"loss 'ohem'"}, [](auto& o) { o.loss.kind = "ohem"; });
  fails({"schedule 'pole'", "poly"}, [](auto& o) { o.schedule.kind = "pole"; });
  fails({"nesterov"}, [](auto& o) { o.optimizer.momentum = 0; });
  fails({"resume needs the output folder"}, [](auto& o) { o.resume = true; });

  const auto model = make_tiny(1);
  data::Loader loader(std::make_shared<BrightestColor>(3, 6), loader_options(4));
  const std::atomic<int> stop{0};
  expect_error(ErrorKind::kUsage, {"3 training images", "batch of 4", "smaller batch"},
               [&] { train(*model, loader, nullptr, tiny_options(""), stop); });
}

}  // namespace
}  // namespace palimpsest::train
