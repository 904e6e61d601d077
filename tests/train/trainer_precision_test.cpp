#include "palimpsest/train/trainer.h"

#include "palimpsest/io/safetensors.h"
#include "palimpsest/train/checkpoint.h"
#include "tests/train/run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <map>

namespace palimpsest::train {
namespace {

using namespace testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TrainerOptions options_in(const std::string& precision, const std::filesystem::path& output) {
  TrainerOptions options = tiny_options(output);
  options.precision = precision;
  options.log_every = 1;
  return options;
}

/// All that a checkpoint holds of the network and its optimizer.
std::map<std::string, at::Tensor> tensors_of(const std::filesystem::path& output) {
  const auto file = io::read_safetensors(output / "checkpoint.safetensors");
  return {file.tensors.begin(), file.tensors.end()};
}

TEST(TrainerPrecision, EveryPrecisionTrainsLikeF32) {
  const TemporaryFolder folder;
  TinyRun f32;
  const double want = f32.train(options_in("f32", folder / "f32")).steps.back().loss;
  for (const std::string precision : {"bf16", "f16", "f16-pseudo"}) {
    TinyRun run;
    const auto outcome = run.train(options_in(precision, folder / precision));
    EXPECT_NEAR(outcome.steps.back().loss, want, kSameLoss16Bits) << precision;
    EXPECT_EQ(outcome.steps.back().skipped_steps, 0) << precision;
    EXPECT_EQ(outcome.steps.back().loss_scale, precision == "bf16" ? 1 : 65536) << precision;
    for (const auto& [name, tensor] : tensors_of(folder / precision))
      EXPECT_TRUE(!tensor.is_floating_point() || tensor.scalar_type() == at::kFloat)
          << name << " in " << precision;
  }
}

/// libtorch's own layers; the second one's weight has more bytes than all that is kept of a batch.
class Wide : public nn::Model {
 public:
  Wide()
      : fc1(register_module("fc1", torch::nn::Linear(3 * 6 * 6, 512))),
        fc2(register_module("fc2", torch::nn::Linear(512, 512))),
        fc3(register_module("fc3", torch::nn::Linear(512, 3))) {}

  at::Tensor forward(const at::Tensor& images) override {
    return fc3(fc2(fc1(images.flatten(1)).relu_()).relu_());
  }
  bool is_segmentation() const override { return false; }

  torch::nn::Linear fc1, fc2, fc3;
};

TEST(TrainerPrecision, WhatIsKeptHoldsNo16BitCopyOfAWeight) {
  for (const std::string precision : {"f32", "bf16", "f16-pseudo"}) {
    at::manual_seed(1);
    Wide model;
    data::Loader loader(std::make_shared<BrightestColor>(8, 6, /*segmentation=*/false), loader_options(4));
    auto options = tiny_options("");
    options.precision = precision;
    const std::atomic<int> stop{0};
    const auto outcome = train(model, loader, nullptr, options, stop);
    EXPECT_GT(outcome.steps.back().kept_bytes, 0) << precision;
    EXPECT_LT(outcome.steps.back().kept_bytes, model.fc2->weight.numel() * 2 / 2) << precision;
  }
}

TEST(TrainerPrecision, BackwardHoldsNoImages) {
  for (const int64_t parts : {1, 2}) {
    TinyRun run;
    auto images_storage = at::empty({0}).storage().getWeakStorageImpl();
    run.model->images_hook = [&](TinySegmenter&, const at::Tensor& images) {
      images_storage = images.storage().getWeakStorageImpl();
      return images.clone();  // as a conversion to 16 bits: the convolution keeps it
    };
    int64_t looked = 0, held = 0;
    run.model->hook = [&](TinySegmenter& model, const at::Tensor& logits) {
      const bool is_last = !model.is_training() || model.training_steps % parts == 0;
      if (model.is_training() && is_last)
        logits.register_hook([&](const at::Tensor&) { ++looked, held += !images_storage.expired(); });
      return logits;
    };
    auto options = tiny_options("");
    options.accumulate = parts;
    run.train(options);
    EXPECT_EQ(looked, kSteps);
    EXPECT_EQ(held, 0) << parts << " parts per step";
  }
}

TEST(TrainerPrecision, AnInjectedOverflowSkipsOneStepAndLeavesNoTraceButInTheScaler) {
  const TemporaryFolder folder;
  // In the logits: loss and gradients overflow; in the images: running statistics, too.
  for (const bool in_images : {false, true}) {
    const std::string name = in_images ? "images" : "logits";
    auto before = options_in("f16", folder / (name + "_before")), after = before;
    before.max_steps = 3;
    TinyRun run;
    run.train(before);
    after.output = folder / (name + "_after");
    after.max_steps = 4;
    TinyRun other;
    if (in_images)
      other.at_images_of_step(4, [](const at::Tensor& images) { return images * kInfinity; });
    else
      other.at_step(4, [](const at::Tensor& logits) { return logits * kInfinity; });
    const auto outcome = other.train(after);
    EXPECT_EQ(outcome.steps[2].skipped_steps, 0);
    EXPECT_EQ(outcome.steps[3].skipped_steps, 1);
    const auto want = tensors_of(before.output), got = tensors_of(after.output);
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [key, tensor] : got)
      EXPECT_TRUE(key == "palimpsest.generator" || torch::equal(tensor, want.at(key))) << name << ": " << key;
    EXPECT_EQ(read_checkpoint_metadata(after.output / "checkpoint.safetensors").at("loss_scale"), "32768");
    const auto log = read_log(after.output);
    EXPECT_EQ(log[3]["skipped_steps"], 1);
    EXPECT_TRUE(log[3]["loss"].is_null());
  }
}

TEST(TrainerPrecision, FiftySkippedStepsInARowEndTheRun) {
  const TemporaryFolder folder;
  for (const std::string scale : {"dynamic", "128"}) {
    auto options = options_in("f16", folder / scale);
    options.epochs = 12;
    options.evaluate_every = 0;
    options.loss_scale = scale;
    TinyRun run;
    run.model->hook = [](TinySegmenter&, const at::Tensor& logits) { return logits * kInfinity; };
    expect_error(
        ErrorKind::kDiverged,
        {"diverged: in f16 no step of the last 50 had finite gradients, up to step 50", "try precision bf16",
         scale == "dynamic" ? "a lower lr" : "a smaller loss scale", "checkpoint.safetensors"},
        [&] { run.train(options); });
  }
}

TEST(TrainerPrecision, AnOverflowInBf16IsADivergedRun) {
  TinyRun run;
  run.at_step(2, [](const at::Tensor& logits) { return logits * kInfinity; });
  expect_error(ErrorKind::kDiverged, {"the loss became"}, [&] { run.train(options_in("bf16", {})); });
}

TEST(TrainerPrecision, AResumedRunHasTheBytesOfAnUnbrokenOne) {
  const TemporaryFolder folder;
  for (const std::string precision : {"bf16", "f16", "f16-pseudo"}) {
    // An overflow before and one after the stop: scale and counts go on, too.
    const auto poison = [](TinyRun& run, std::initializer_list<int64_t> steps) {
      run.model->hook = [steps = std::vector(steps)](TinySegmenter& m, const at::Tensor& logits) {
        const bool bad = m.is_training() && std::ranges::count(steps, m.training_steps) > 0;
        return bad ? logits * kInfinity : logits;
      };
    };
    const bool scaled = precision != "bf16";
    TinyRun unbroken, first, second(/*model_seed=*/99);
    auto whole = options_in(precision, folder / precision);
    if (precision == "f16-pseudo") whole.loss_scale = "auto";
    if (scaled) poison(unbroken, {2, 8});
    unbroken.train(whole);
    auto options = whole;
    options.output = folder / (precision + "_broken");
    options.max_steps = 6;
    if (scaled) poison(first, {2});
    first.train(options);
    options.max_steps = 0;
    options.resume = true;
    if (scaled) poison(second, {2});  // its second step is the eighth
    second.train(options);
    EXPECT_TRUE(checkpoint_bytes(options.output) == checkpoint_bytes(folder / precision)) << precision;
  }
}

TEST(TrainerPrecision, ACheckpointOfAnotherPrecisionGoesOnAndIsNamedInOneLine) {
  const TemporaryFolder folder;
  const std::pair<std::string, std::string> changes[] = {
      {"f16", "f32"}, {"f32", "f16"}, {"bf16", "f16-pseudo"}};
  for (const auto& [from, to] : changes) {
    auto options = options_in(from, folder / (from + to));
    options.max_steps = 3;
    TinyRun first, second;
    first.train(options);
    options.precision = to;
    options.resume = true;
    options.quiet = false;
    options.max_steps = 4;
    ::testing::internal::CaptureStderr();
    const auto outcome = second.train(options);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(outcome.steps.size(), 1U);
    EXPECT_NE(said.find("note: the checkpoint of step 3 was trained in " + from + ", the run goes on in " +
                        to + ": parameters and momentum are f32 in both"),
              std::string::npos)
        << said;
    const auto metadata = read_checkpoint_metadata(options.output / "checkpoint.safetensors");
    EXPECT_EQ(metadata.contains("loss_scale"), to != "f32");
    EXPECT_EQ(metadata.contains("precision"), to != "f32");
  }
}

TEST(TrainerPrecision, AConstantScaleIsWhatTheOptionsSayAlsoAfterAResume) {
  const TemporaryFolder folder;
  auto options = options_in("f16", folder / "run");
  options.max_steps = 2;
  TinyRun first, second;
  first.train(options);
  options.resume = true;
  options.max_steps = 3;
  options.loss_scale = "8";
  EXPECT_EQ(second.train(options).steps[0].loss_scale, 8);
}

TEST(TrainerPrecision, AnAutomaticScaleIsChosenAtOnceAndAfterAnOverflow) {
  const TemporaryFolder folder;
  auto options = options_in("f16", folder / "run");
  options.loss_scale = "auto";
  options.histogram_every = 1;
  TinyRun run;
  run.at_step(4, [](const at::Tensor& logits) { return logits * kInfinity; });
  run.train(options);
  std::vector<double> used, recommended;
  for (const auto& line : read_log(options.output)) {
    if (line["type"] == "step") used.push_back(line["loss_scale"]);
    if (line["type"] == "exponents") recommended.push_back(line["recommended_scale"]);
  }
  ASSERT_EQ(used.size(), static_cast<std::size_t>(kSteps));
  ASSERT_EQ(recommended.size(), used.size() - 1) << "a step that overflowed shows nothing";
  EXPECT_EQ(used[0], 65536);
  for (const int step : {1, 2, 3})
    EXPECT_EQ(used[step], recommended[0]) << "chosen in the first step, and kept";
  EXPECT_EQ(used[4], recommended[0] / 2) << "after the overflow";
  for (std::size_t step = 5; step < used.size(); ++step)
    EXPECT_EQ(used[step], recommended[3]) << "chosen anew";
}

TEST(TrainerPrecision, HistogramsOfGradientsAreLoggedAndDrawn) {
  const TemporaryFolder folder;
  for (const std::string precision : {"f32", "f16"}) {
    auto options = options_in(precision, folder / precision);
    options.histogram_every = 4;
    TinyRun run;
    run.train(options);
    std::vector<int64_t> steps;
    for (const auto& line : read_log(options.output)) {
      if (line["type"] != "exponents") continue;
      steps.push_back(line["step"]);
      EXPECT_EQ(line["weights"]["values"], 8 * 27 + 8 + 8 + 3 * 8 + 3);
      EXPECT_EQ(line["activations"]["values"] > 0, precision == "f16");
      double sum = line["weights"]["zero"];
      for (const double share : line["weights"]["bars"]) sum += share;
      EXPECT_NEAR(sum, 1, kReorderedF64);
      EXPECT_GE(line["recommended_scale"], 1);
    }
    EXPECT_EQ(steps, (std::vector<int64_t>{1, 5, 9}));
    const std::string svg = io::read_file(options.output / "exponents.svg");
    EXPECT_TRUE(svg.starts_with("<svg"));
    for (const char* text : {"Gradients of step 9", "weight gradients", "least f16, scaled"})
      EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
}

TEST(TrainerPrecision, ASkippedStepHasItsHistogramInTheNextOne) {
  const TemporaryFolder folder;
  using Steps = std::vector<int64_t>;
  for (const std::string scale : {"dynamic", "auto"})
    for (const auto& [skipped, want] : {std::pair{5, Steps{1, 6, 9}}, {3, Steps{1, 5, 9}}}) {
      auto options = options_in("f16", folder / (scale + std::to_string(skipped)));
      options.loss_scale = scale;
      options.histogram_every = 4;
      TinyRun run;
      run.at_step(skipped, [](const at::Tensor& logits) { return logits * kInfinity; });
      run.train(options);
      Steps steps;
      for (const auto& line : read_log(options.output))
        if (line["type"] == "exponents") steps.push_back(line["step"]);
      EXPECT_EQ(steps, want) << scale << ", without step " << skipped;
    }
}

}  // namespace
}  // namespace palimpsest::train
