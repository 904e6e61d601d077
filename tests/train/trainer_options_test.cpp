#include "palimpsest/io/safetensors.h"
#include "palimpsest/nn/state_dict.h"
#include "palimpsest/train/best.h"
#include "palimpsest/train/checkpoint.h"
#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/trainer.h"
#include "tests/train/ranks.h"
#include "tests/train/run.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <csignal>
#include <stdexcept>

// train() with accumulated gradients, clipping, averages, AdamW, groups of parameters, frozen layers, the best
// checkpoint and early stop.
namespace palimpsest::train {
namespace {

using namespace testing;

constexpr double kSameRun = 1e-10;  // relative, after 15 steps that each differ by rounding

/// A network whose step does not depend on how a batch is divided.
torch::nn::Sequential net_without_norm() {
  at::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)),
                               torch::nn::ReLU(), torch::nn::Conv2d(8, 3, 1));
}

TrainerOptions all_in_f64() {
  TrainerOptions options;
  options.epochs = 5;
  options.dtype = "f64";
  options.quiet = true;
  options.optimizer.kind = "adamw";
  options.optimizer.lr = 0.02;
  options.optimizer.weight_decay = 0.05;
  options.optimizer.clip_norm = 0.3;
  options.optimizer.lr_factors = {"2=5"};
  options.schedule.kind = "constant";
  options.loss.label_smoothing = 0.1;
  options.loss.class_weights = {1, 2, 0.5};
  options.accumulate = 3;
  options.ema_decay = 0.8;
  return options;
}

data::LoaderOptions sevens(const distributed::Group* group) {
  auto options = loader_options(7);
  if (group) {
    options.rank = group->rank();
    options.ranks = group->size();
  }
  return options;
}

at::Tensor flat_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> flat;
  for (const auto& p : module.parameters()) flat.push_back(p.detach().reshape({-1}));
  return at::cat(flat);
}

at::Tensor flat_averages(const TrainingOutcome& outcome) {
  std::vector<at::Tensor> flat;
  for (const auto& [name, tensor] : outcome.averages) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

TEST(TrainerOptions, AllTogetherTrainAsAPlainLoopOfLibtorch) {
  auto net = net_without_norm(), plain = net_without_norm();
  data::Loader loader(std::make_shared<BrightestColor>(21, 6), sevens(nullptr));
  const auto outcome = train(net, loader, nullptr, all_in_f64());

  plain->to(at::kDouble);
  using torch::optim::AdamWOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(plain[0]->parameters(),
                      std::make_unique<AdamWOptions>(AdamWOptions(0.02).weight_decay(0.05)));
  groups.emplace_back(plain[2]->parameters(),
                      std::make_unique<AdamWOptions>(AdamWOptions(0.1).weight_decay(0.05)));
  torch::optim::AdamW adamw(groups, AdamWOptions(0.02));
  std::vector<at::Tensor> averages;
  for (const auto& p : plain->parameters()) averages.push_back(p.detach().clone());
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    loader.start_epoch(epoch);
    while (const auto batch = loader.next()) {
      namespace F = torch::nn::functional;
      const at::Tensor loss =
          F::cross_entropy(plain->forward(batch->images.to(at::kDouble)), batch->targets,
                           F::CrossEntropyFuncOptions().ignore_index(255).label_smoothing(0.1).weight(
                               at::tensor({1.0, 2.0, 0.5}, at::kDouble)));
      loss.backward();
      double squares = 0;
      for (const auto& p : plain->parameters()) squares += p.grad().square().sum().item<double>();
      const double norm = std::sqrt(squares);
      if (norm > 0.3)
        for (const auto& p : plain->parameters()) p.grad().mul_(0.3 / norm);
      adamw.step();
      adamw.zero_grad();
      const auto& record = outcome.steps[static_cast<std::size_t>(step++)];
      EXPECT_NEAR(record.loss, loss.item<double>(), kSameRun);
      ASSERT_TRUE(record.gradient_norm);
      EXPECT_NEAR(*record.gradient_norm, norm, kSameRun);
      const at::NoGradGuard no_grad;
      const double s = static_cast<double>(step), decay = std::min(0.8, (1 + s) / (10 + s));
      for (std::size_t i = 0; i < averages.size(); ++i)
        averages[i] = decay * averages[i] + (1 - decay) * plain->parameters()[i];
    }
  }
  EXPECT_EQ(step, 15);
  EXPECT_LE(relative_error(flat_parameters(*net), flat_parameters(*plain)), kSameRun);
  for (auto& average : averages) average = average.reshape({-1});
  EXPECT_LE(relative_error(flat_averages(outcome), at::cat(averages)), kSameRun);
}

TEST(TrainerOptions, RanksTrainAsOneProcess) {
  for (const int size : {2, 3}) {
    on_ranks(size, [&](distributed::Group& group) {
      for (const char* kind : {"cross_entropy", "bootstrap"}) {
        SCOPED_TRACE(kind);
        const auto run = [&](distributed::Group* of) {
          auto options = all_in_f64();
          options.loss.kind = kind;
          options.loss.bootstrap_probability = 0.6;
          options.accumulate = of ? 2 : 3;  // 7 images on 3 ranks: one has 3, two have 2
          options.freeze = {"0.bias"};
          options.group = of;
          auto net = net_without_norm();
          data::Loader loader(std::make_shared<BrightestColor>(21, 6), sevens(of));
          const auto outcome = train(net, loader, nullptr, options);
          std::vector<double> norms;
          for (const auto& step : outcome.steps) norms.push_back(*step.gradient_norm);
          return at::cat({flat_parameters(*net), flat_averages(outcome), at::tensor(norms, at::kDouble)});
        };
        EXPECT_LE(relative_error(run(&group), run(nullptr)), kSameRun);
      }
    });
  }
}

TrainerOptions resumable(const std::filesystem::path& output, const std::string& precision) {
  auto options = tiny_options(output);
  options.epochs = 3;
  options.precision = precision;
  options.accumulate = 2;
  options.ema_decay = 0.9;
  options.freeze = {"conv2.bias"};
  options.keep_best = "loss";
  options.patience = 50;
  options.optimizer = {.kind = "adamw", .lr = 0.02, .lr_factors = {"conv2=3"}, .clip_norm = 0.5};
  options.loss.label_smoothing = 0.1;
  return options;
}

std::string bytes_of_both(const std::filesystem::path& output) {
  return checkpoint_bytes(output) + io::read_file(output / kBestFile);
}

TEST(TrainerOptions, AResumedRunHasTheBytesOfAnUnbrokenOne) {
  for (const std::string precision : {"f32", "f16"}) {
    const TemporaryFolder folder;
    TinyRun unbroken;
    unbroken.train(resumable(folder / "unbroken", precision));
    for (const bool kill : {false, true})
      for (const int64_t step : {1, 5, 6, 13}) {
        SCOPED_TRACE(precision + (kill ? " killed in step " : " stopped in step ") + std::to_string(step));
        auto options = resumable(folder / "broken", precision);
        TinyRun first;
        // Two forward passes per step.
        first.at_step(2 * step, [&](const at::Tensor& logits) {
          if (kill) throw std::logic_error("killed");
          first.stop = SIGTERM;
          return logits;
        });
        try {
          first.train(options);
        } catch (const std::exception&) {
          EXPECT_TRUE(kill);
        }
        TinyRun second(/*model_seed=*/99);
        options.resume = true;
        second.train(options);
        EXPECT_TRUE(bytes_of_both(folder / "broken") == bytes_of_both(folder / "unbroken"));
        EXPECT_EQ(reproducible_log(folder / "broken"), reproducible_log(folder / "unbroken"));
        std::filesystem::remove_all(folder / "broken");
      }
  }
}

TEST(TrainerOptions, ResumedRanksHaveTheBytesOfUnbrokenOnes) {
  const TemporaryFolder folder;
  on_ranks(2, [&](distributed::Group& group) {
    const auto run = [&](TrainerOptions options, int64_t steps, bool resume) {
      const auto model = make_tiny(resume ? 99 : 1);
      auto evaluated = loader_options(2);
      evaluated.rank = group.rank();
      evaluated.ranks = 2;
      evaluated.share_whole_batches = true;
      auto trained = loader_options(4);
      trained.rank = group.rank();
      trained.ranks = 2;
      data::Loader loader(std::make_shared<BrightestColor>(20, 6), trained),
          validation(std::make_shared<BrightestColor>(4, 6), evaluated);
      options.max_steps = steps;
      options.resume = resume;
      options.group = &group;
      train(*model, loader, &validation, options);
    };
    run(resumable(folder / "unbroken", "f32"), 0, false);
    std::atomic<int> stop{0};
    run(resumable(folder / "broken", "f32"), 5, false);
    run(resumable(folder / "broken", "f32"), 10, true);
    run(resumable(folder / "broken", "f32"), 0, true);
  });
  EXPECT_TRUE(bytes_of_both(folder / "broken") == bytes_of_both(folder / "unbroken"));
}

TEST(TrainerOptions, EvaluationsAreThoseOfTheAveragesThatTheCheckpointHolds) {
  const TemporaryFolder folder;
  auto options = tiny_options(folder / "run");
  options.ema_decay = 0.9;
  TinyRun run;
  const auto outcome = run.train(options);
  auto file = io::read_safetensors(folder / "run/checkpoint.safetensors");
  ASSERT_NE(file.find("palimpsest.ema.conv1.weight"), nullptr);
  ASSERT_NE(file.find("palimpsest.ema.bn1.running_mean"), nullptr);
  EXPECT_TRUE(file.find("conv1.weight")->equal(run.model->conv1->weight)) << "the trained parameters";

  const auto averaged = make_tiny(7), trained = make_tiny(7);
  load_weights(folder / "run/checkpoint.safetensors", *trained);
  nn::StateDict tensors = file.tensors;
  EXPECT_TRUE(take_averages(tensors));
  EXPECT_FALSE(take_averages(tensors)) << "none are left";
  nn::load_state_dict(*averaged, tensors, {.strict = false});
  const auto loss_of = [&](TinySegmenter& model) { return evaluate(model, run.validation, {}, {}).loss; };
  EXPECT_EQ(loss_of(*averaged), outcome.evaluations.back().loss);
  EXPECT_NE(loss_of(*trained), outcome.evaluations.back().loss);
}

TEST(TrainerOptions, ARunCanBeginItsAveragesAndLoseThemWhenItIsResumed) {
  const TemporaryFolder folder;
  auto options = tiny_options(folder / "run");
  options.max_steps = 3;
  TinyRun first, second, third;
  first.train(options);
  options.resume = true;
  options.max_steps = 6;
  options.ema_decay = 0.99;
  EXPECT_FALSE(second.train(options).averages.empty());
  options.max_steps = 8;
  options.ema_decay = 0;
  EXPECT_TRUE(third.train(options).averages.empty());
  EXPECT_EQ(io::read_safetensors(folder / "run/checkpoint.safetensors").find("palimpsest.ema.conv1.weight"),
            nullptr);
}

TEST(TrainerOptions, AverageOfAnotherNetworkIsACheckpointErrorThatNamesIt) {
  const TemporaryFolder folder;
  auto options = tiny_options(folder / "run");
  options.ema_decay = 0.9;
  TinyRun first, second;
  first.train(options);
  auto file = io::read_safetensors(folder / "run/checkpoint.safetensors");
  for (auto& [name, tensor] : file.tensors)
    if (name == "palimpsest.ema.conv1.weight") name = "palimpsest.ema.conv7.weight";
  io::write_safetensors(folder / "run/checkpoint.safetensors", file);
  options.resume = true;
  expect_error(ErrorKind::kCheckpoint, {"averages of the model", "conv1.weight", "conv7.weight"},
               [&] { second.train(options); });
}

TEST(TrainerOptions, FrozenLayersKeepTheirBitsAndHaveNoState) {
  const TemporaryFolder folder;
  auto options = tiny_options(folder / "run");
  options.freeze = {"conv1", "bn1"};
  TinyRun run;
  const auto before = nn::state_dict(*make_tiny(1));
  run.train(options);
  for (const auto& [name, tensor] : nn::state_dict(*run.model)) {
    const auto old =
        std::find_if(before.begin(), before.end(), [&](const auto& e) { return e.first == name; });
    EXPECT_EQ(tensor.equal(old->second), !name.starts_with("conv2")) << name;
  }
  const auto file = io::read_safetensors(folder / "run/checkpoint.safetensors");
  EXPECT_EQ(file.find("palimpsest.momentum.conv1.weight"), nullptr);
  EXPECT_NE(file.find("palimpsest.momentum.conv2.weight"), nullptr);
  EXPECT_TRUE(run.model->conv1->weight.requires_grad()) << "as before the training";

  auto thawed = options;  // the frozen part goes on without momentum
  thawed.resume = true;
  thawed.freeze = {};
  thawed.epochs = 3;
  TinyRun more;
  more.train(thawed);
  EXPECT_FALSE(more.model->conv1->weight.equal(make_tiny(1)->conv1->weight));
}

TEST(TrainerOptions, FrozenNormKeepsStatisticsThroughAnEvaluation) {
  auto options = tiny_options({});
  options.freeze_norm = true;
  TinyRun run;
  const at::Tensor weight = run.model->bn1->weight.detach().clone();
  EXPECT_EQ(run.train(options).evaluations.size(), 2u);
  EXPECT_EQ(run.model->bn1->num_batches_tracked.item<int64_t>(), 0);
  EXPECT_TRUE(run.model->bn1->running_mean.equal(at::zeros({8})));
  EXPECT_FALSE(run.model->bn1->weight.equal(weight));
  EXPECT_TRUE(run.model->bn1->is_training());
}

/// Makes the network worse from `step` on, so that no later evaluation is better.
void spoil_from(TinyRun& run, int64_t step) {
  run.model->hook = [step](TinySegmenter& m, const at::Tensor& logits) {
    return m.training_steps >= step && !m.is_training() ? -logits : logits;
  };
}

TEST(TrainerOptions, TheBestCheckpointIsThatOfTheBestEvaluationAndTheRunStopsEarly) {
  const TemporaryFolder folder;
  auto options = tiny_options(folder / "run");
  options.epochs = 9;
  options.keep_best = "metric";
  options.patience = 2;
  TinyRun run;
  spoil_from(run, 3 * kBatches + 1);
  const auto outcome = run.train(options);
  EXPECT_TRUE(outcome.stopped_early);
  EXPECT_EQ(outcome.signal, 0);

  int64_t best = 0;
  double value = 0;
  for (const auto& e : outcome.evaluations) {
    EXPECT_EQ(*e.best, e.metrics.mean_iou > value);
    if (*e.best) best = e.step, value = e.metrics.mean_iou;
  }
  EXPECT_EQ(outcome.last_step, best + 2 * kBatches);
  std::vector<bool> logged;
  for (const auto& line : read_log(folder / "run"))
    if (line["type"] == "evaluation") logged.push_back(line["best"]);
  ASSERT_EQ(logged.size(), outcome.evaluations.size());
  EXPECT_FALSE(logged.back());

  const auto metadata = read_checkpoint_metadata(folder / "run" / kBestFile);
  EXPECT_EQ(metadata.at("step"), std::to_string(best));
  EXPECT_EQ(metadata.at("palimpsest_best_step"), std::to_string(best));
  const auto saved = make_tiny(7);
  load_weights(folder / "run" / kBestFile, *saved);
  EXPECT_EQ(evaluate(*saved, run.validation, {}, {}).metrics.mean_iou, value);

  TinyRun again, patient;
  options.resume = true;
  const auto resumed = again.train(options);
  EXPECT_TRUE(resumed.stopped_early);
  EXPECT_TRUE(resumed.steps.empty());
  EXPECT_TRUE(resumed.evaluations.empty());
  options.patience = 3;
  EXPECT_FALSE(patient.train(options).steps.empty());
}

TEST(TrainerOptions, AResumedRunTellsThatItsBestCheckpointIsGone) {
  const TemporaryFolder folder;
  auto options = tiny_options(folder / "run");
  options.epochs = 2;
  options.keep_best = "metric";
  TinyRun run, whole, without;
  run.train(options);
  options.resume = true;
  options.quiet = false;
  const auto notes = [&](TinyRun& resumed) {
    ::testing::internal::CaptureStderr();
    resumed.train(options);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(notes(whole), ::testing::Not(::testing::HasSubstr("is gone")));
  std::filesystem::remove(folder / "run" / kBestFile);
  EXPECT_THAT(notes(without),
              ::testing::ContainsRegex(
                  "best.safetensors of step .* is gone: it is written again once an evaluation is better"));
}

TEST(TrainerOptions, ANewRunRemovesTheBestCheckpointOfAnEarlierOne) {
  const TemporaryFolder folder;
  auto options = tiny_options(folder / "run");
  options.keep_best = "loss";
  TinyRun first, second;
  first.train(options);
  ASSERT_TRUE(std::filesystem::exists(folder / "run" / kBestFile));
  options.keep_best = "none";
  second.train(options);
  EXPECT_FALSE(std::filesystem::exists(folder / "run" / kBestFile));
}

TEST(TrainerOptions, ClippingInF16SeesUnscaledGradients) {
  for (const int64_t accumulate : {1, 2}) {
    std::vector<double> norms;
    for (const std::string precision : {"f32", "f16"}) {
      auto options = tiny_options({});
      options.precision = precision;
      options.accumulate = accumulate;
      options.optimizer.clip_norm = 0.1;
      TinyRun run;
      norms.push_back(*run.train(options).steps.front().gradient_norm);
    }
    EXPECT_NEAR(norms[1], norms[0], 0.02 * norms[0]);
  }
}

TEST(TrainerOptions, ASkippedStepInF16MovesNoAverage) {
  auto options = tiny_options({});
  options.precision = "f16";
  options.ema_decay = 0.9;
  options.optimizer.clip_norm = 1;
  options.max_steps = 1;
  TinyRun run;
  run.at_step(1, [](const at::Tensor& logits) {  // the loss is finite, its gradient is not
    at::Tensor result = logits.clone();
    result.register_hook([](const at::Tensor& g) { return g * std::numeric_limits<float>::infinity(); });
    return result;
  });
  const auto first = make_tiny(1);
  const auto outcome = run.train(options);
  EXPECT_EQ(outcome.steps[0].skipped_steps, 1);
  EXPECT_FALSE(std::isfinite(*outcome.steps[0].gradient_norm));
  nn::StateDict before = nn::state_dict(*first);
  std::erase_if(before, [](const auto& entry) { return !entry.second.is_floating_point(); });
  ASSERT_EQ(outcome.averages.size(), before.size());
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(outcome.averages[i].second.equal(before[i].second)) << before[i].first;
}

TEST(TrainerOptions, SettingsThatCannotWorkAreErrors) {
  const auto fails = [](const std::function<void(TrainerOptions&)>& change,
                        const std::vector<std::string>& parts) {
    TinyRun run;
    auto options = tiny_options({});
    change(options);
    expect_error(ErrorKind::kUsage, parts, [&] { run.train(options); });
  };
  fails([](auto& o) { o.accumulate = 0; }, {"accumulate", "at least 1", "0"});
  fails([](auto& o) { o.accumulate = 5; }, {"accumulate", "at most", "(4)", "5"});
  fails([](auto& o) { o.ema_decay = 1; }, {"ema_decay", "1"});
  fails([](auto& o) { o.keep_best = "loss", o.evaluate_every = 0; }, {"keep_best", "evaluate_every"});
  fails([](auto& o) { o.patience = 2; }, {"patience needs keep_best"});
  fails([](auto& o) { o.freeze = {"conv3"}; }, {"freeze", "conv3", "did you mean"});
  fails([](auto& o) { o.freeze = {"conv1", "conv2", "bn1"}; }, {"all parameters", "frozen"});
  fails([](auto& o) { o.optimizer.clip_norm = -1; }, {"clip_norm", "-1"});
  fails([](auto& o) { o.loss.class_weights = {1, 2}; }, {"class_weights", "3 classes", "2 numbers"});
  TinyRun run;
  auto options = tiny_options({});
  options.keep_best = "loss";
  expect_error(ErrorKind::kUsage, {"keep_best", "validation"},
               [&] { train(*run.model, run.loader, nullptr, options); });
}

}  // namespace
}  // namespace palimpsest::train
