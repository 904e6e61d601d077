#include "tests/train/ranks.h"

#include "palimpsest/io/safetensors.h"
#include "palimpsest/train/checkpoint.h"
#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/trainer.h"
#include "tests/train/run.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>

#include <csignal>
#include <limits>

// Several processes train and evaluate together.
namespace palimpsest::train {
namespace {

using namespace testing;

data::LoaderOptions share_of(data::LoaderOptions options, const distributed::Group* group) {
  if (!group) return options;
  options.rank = group->rank();
  options.ranks = group->size();
  return options;
}

/// Noise with another number of void pixels in each image; images of three sizes if `mixed`.
class UnevenNoise : public data::Dataset {
 public:
  UnevenNoise(int64_t size, bool segmentation, bool mixed = false)
      : size_(size), segmentation_(segmentation), mixed_(mixed) {}
  int64_t size() const override { return size_; }
  const std::vector<std::string>& class_names() const override { return names_; }
  data::Sample get(int64_t index, Random& random) const override {
    const int64_t side = 6 + (mixed_ ? index % 3 : 0);
    data::Sample sample = BrightestColor(size_, side, segmentation_).get(index, random);
    if (segmentation_) sample.target.narrow(0, 0, index % 6).fill_(255);
    return sample;
  }

 private:
  int64_t size_;
  bool segmentation_, mixed_;
  std::vector<std::string> names_{"red", "green", "blue"};
};

// Evaluation

EvaluationRecord evaluation(bool segmentation, int64_t batch, bool mixed, distributed::Group* group) {
  auto options = share_of(loader_options(batch), group);
  options.shuffle = options.drop_last = false;
  options.share_whole_batches = options.split_by_size = true;
  data::Loader loader(std::make_shared<UnevenNoise>(7, segmentation, mixed), options);
  const auto format = TensorFormat::parse("f64", false);
  if (segmentation) return evaluate(*make_tiny(1), loader, {}, format, group);
  at::manual_seed(1);
  TinyClassifier classifier;
  return evaluate(classifier, loader, {}, format, group);
}

TEST(Ranks, EvaluateToTheMetricsOfOneProcess) {
  for (const int size : {2, 3, 4}) {
    on_ranks(size, [](distributed::Group& group) {
      for (const bool segmentation : {true, false})
        for (const bool mixed : {true, false})
          for (const int64_t batch : {1, 2, 4, 7}) {  // 7 to 1 batches: a rank may have none
            SCOPED_TRACE(batch);
            const auto want = evaluation(segmentation, batch, mixed, nullptr);
            const auto got = evaluation(segmentation, batch, mixed, &group);
            EXPECT_EQ(got.images, 7);
            EXPECT_EQ(got.segmentation, segmentation);
            EXPECT_EQ(got.metrics.mean_iou, want.metrics.mean_iou);
            EXPECT_EQ(got.metrics.class_iou, want.metrics.class_iou);
            EXPECT_EQ(got.metrics.pixel_accuracy, want.metrics.pixel_accuracy);
            EXPECT_EQ(got.metrics.top1, want.metrics.top1);
            EXPECT_EQ(got.metrics.top5, want.metrics.top5);
            EXPECT_NEAR(got.loss, want.loss, kReorderedF64);
          }
    });
  }
}

TEST(Ranks, AStopOnOneOfThemEndsTheEvaluationOnAll) {
  on_ranks(2, [](distributed::Group& group) {
    const auto model = make_tiny(1);
    auto options = share_of(loader_options(1), &group);
    options.shuffle = false;
    options.share_whole_batches = true;
    data::Loader loader(std::make_shared<UnevenNoise>(7, true), options);
    LoaderBatches batches(loader);
    int64_t polls = 0;
    const auto stopped = [&] { return ++polls == 2 && group.rank() == 1; };
    EXPECT_FALSE(evaluate_unless(stopped, *model, batches, {}, {}, &group).has_value());
    EXPECT_EQ(polls, 2);
  });
}

/// Images that cannot be read.
class Unreadable : public data::Dataset {
 public:
  explicit Unreadable(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  const std::vector<std::string>& class_names() const override { return names_; }
  data::Sample get(int64_t index, Random&) const override {
    throw Error(ErrorKind::kData, "image " + std::to_string(index) + " is truncated");
  }

 private:
  int64_t size_;
  std::vector<std::string> names_{"red", "green", "blue"};
};

TEST(Ranks, ImagesOfWhichNoneCanBeReadAreTheSameDataErrorOnAllOfThem) {
  on_ranks(3, [](distributed::Group& group) {
    const auto model = make_tiny(1);
    auto options = share_of(loader_options(2), &group);
    options.shuffle = options.drop_last = false;
    options.share_whole_batches = true;
    options.bad_examples = data::BadExamples::kLeaveOut;
    data::Loader loader(std::make_shared<Unreadable>(3), options);  // 2, 1 and 0 images
    std::string message;
    expect_error(ErrorKind::kData,
                 {"none of the 3 images of the evaluation could be read", "image 0 is truncated"}, [&] {
                   try {
                     evaluate(*model, loader, {}, {}, &group);
                   } catch (const Error& error) {
                     message = error.what();
                     throw;
                   }
                 });
    EXPECT_NO_THROW(group.require_same(message, "the messages"));
  });
}

TEST(Ranks, ASourceThatIsNotTheirShareIsAUsageError) {
  on_ranks(2, [](distributed::Group& group) {
    const auto model = make_tiny(1);
    data::Loader all(std::make_shared<UnevenNoise>(8, true), loader_options(4));
    expect_error(ErrorKind::kUsage, {"the batches of the evaluation", "of 2", "got that of process 0 of 1"},
                 [&] { evaluate(*model, all, {}, {}, &group); });
    TrainerOptions options;
    options.group = &group;
    expect_error(ErrorKind::kUsage, {"the training batches", "of 2", "got that of process 0 of 1"},
                 [&] { train(*model, all, nullptr, options); });
    data::Loader part(std::make_shared<UnevenNoise>(8, true), share_of(loader_options(4), &group));
    options.group = nullptr;
    expect_error(ErrorKind::kUsage, {"the training batches", "process 0 of 1", "got that of process"},
                 [&] { train(*model, part, nullptr, options); });
  });
}

// Training

constexpr double kSameTraining = 1e-10;  // relative, after 24 steps that each differ by rounding

/// Trains 24 steps of a network without normalization in f64; returns its parameters and losses.
std::pair<at::Tensor, std::vector<double>> training(const LossOptions& loss, distributed::Group* group) {
  at::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)),
                            torch::nn::ReLU(), torch::nn::Conv2d(8, 3, 1));
  data::Loader loader(std::make_shared<UnevenNoise>(21, true), share_of(loader_options(7), group));
  TrainerOptions options;
  options.epochs = 8;
  options.dtype = "f64";
  options.optimizer.lr = 0.2;
  options.loss = loss;
  options.quiet = true;
  options.group = group;
  const auto outcome = train(net, loader, nullptr, options);
  std::vector<at::Tensor> flat;
  for (const auto& p : net->parameters()) flat.push_back(p.detach().reshape({-1}));
  std::vector<double> losses;
  for (const auto& step : outcome.steps) losses.push_back(step.loss);
  return {at::cat(flat), losses};
}

TEST(Ranks, TrainAsOneProcessWithTheWholeBatch) {
  for (const int size : {2, 3, 4}) {  // 7 images: uneven parts
    on_ranks(size, [](distributed::Group& group) {
      for (const auto* kind : {"cross_entropy", "bootstrap"}) {
        SCOPED_TRACE(kind);
        LossOptions loss;
        loss.kind = kind;
        loss.bootstrap_probability = 0.9;  // another number of pixels is selected on each rank
        const auto [want, want_losses] = training(loss, nullptr);
        const auto [got, got_losses] = training(loss, &group);
        EXPECT_LT(relative_error(got, want), kSameTraining);
        ASSERT_EQ(got_losses.size(), 24u);
        for (std::size_t i = 0; i < got_losses.size(); ++i)
          EXPECT_NEAR(got_losses[i], want_losses[i], kSameTraining * want_losses[i]) << i;
      }
    });
  }
}

/// One process's worth of a run of several: TinyRun with the shares of a rank.
struct RankRun {
  explicit RankRun(distributed::Group* group_, uint64_t model_seed = 1)
      : group(group_),
        model(make_tiny(model_seed)),
        loader(std::make_shared<BrightestColor>(4 * kBatches, 6), share_of(loader_options(4), group_)),
        validation(std::make_shared<BrightestColor>(4, 6), evaluated(group_)) {}

  static data::LoaderOptions evaluated(distributed::Group* group) {
    auto options = share_of(loader_options(2), group);
    options.share_whole_batches = true;
    return options;
  }
  TrainingOutcome train(TrainerOptions options) {
    options.group = group;
    return palimpsest::train::train(*model, loader, &validation, options, stop);
  }
  /// Lets `act` see and replace the logits of training step number `step`, on one rank.
  void at_step(int rank, int64_t step, const std::function<at::Tensor(const at::Tensor&)>& act) {
    if (group->rank() == rank) model->hook = TinyRun::only_at(step, act);
  }

  distributed::Group* group;
  std::shared_ptr<TinySegmenter> model;
  data::Loader loader, validation;
  std::atomic<int> stop{0};
};

TEST(Ranks, AStopSignalOnOneOfThemStopsAllAfterTheSameStepAndTheResumedRunHasTheBytesOfAnUnbrokenOne) {
  const TemporaryFolder folder;
  const auto unbroken = tiny_options(folder / "unbroken"), broken = tiny_options(folder / "broken");
  on_ranks(2, [&](distributed::Group& group) {
    RankRun whole(&group), first(&group), second(&group, /*model_seed=*/99);
    EXPECT_EQ(whole.train(unbroken).steps.size(), static_cast<std::size_t>(kSteps));
    first.at_step(1, 3, [&](const at::Tensor& logits) {
      first.stop = SIGTERM;
      return logits;
    });
    const auto outcome = first.train(broken);
    EXPECT_EQ(outcome.signal, SIGTERM) << "on both ranks";
    EXPECT_EQ(outcome.last_step, 3);
    auto resumed = broken;
    resumed.resume = true;
    EXPECT_EQ(second.train(resumed).steps.size(), static_cast<std::size_t>(kSteps - 3));
    at::Tensor drawn = at::randn({2});  // the ranks draw different numbers
    EXPECT_FALSE(group.all_gather(drawn, "numbers")[0].equal(group.all_gather(drawn, "numbers")[1]));
  });
  EXPECT_TRUE(checkpoint_bytes(folder / "broken") == checkpoint_bytes(folder / "unbroken"));
  EXPECT_EQ(reproducible_log(folder / "broken"), reproducible_log(folder / "unbroken"));
}

TEST(Ranks, ACheckpointGoesOnWithAnotherNumberOfThem) {
  const TemporaryFolder folder;
  auto options = tiny_options(folder / "run");
  options.max_steps = 3;
  const auto more = [&](int64_t steps) {
    options.resume = true;
    options.max_steps = steps;
  };
  const auto generators = [&] {
    const auto file = io::read_safetensors(folder / "run/checkpoint.safetensors");
    const at::Tensor* rows = file.find("palimpsest.generator.ranks");
    return rows ? rows->size(0) : 0;
  };
  const auto go = [&](int size) {
    on_ranks(size, [&](distributed::Group& group) {
      RankRun run(&group, /*model_seed=*/size);
      const auto outcome = run.train(options);
      EXPECT_EQ(outcome.last_step, options.max_steps);
      EXPECT_EQ(outcome.steps.front().step, options.resume ? options.max_steps - 1 : 1);
    });
  };
  go(2);
  EXPECT_EQ(generators(), 1);
  more(5);
  go(3);
  EXPECT_EQ(generators(), 2);
  more(7);
  TinyRun alone(99);
  EXPECT_EQ(alone.train(options).steps.size(), 2u);
  EXPECT_EQ(generators(), 0);
  more(9);
  go(2);
  EXPECT_EQ(generators(), 1);
}

TEST(Ranks, DivergeTogetherIfTheLossOfOneIsNotFinite) {
  const TemporaryFolder folder;
  const auto options = tiny_options(folder / "run");
  on_ranks(2, [&](distributed::Group& group) {
    RankRun run(&group);
    run.at_step(1, 2,
                [](const at::Tensor& logits) { return logits * std::numeric_limits<float>::quiet_NaN(); });
    std::string message;
    try {
      run.train(options);
    } catch (const Error& error) {
      message = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
    }
    EXPECT_NE(message.find("the loss became NaN in step 2"), std::string::npos) << message;
    EXPECT_NO_THROW(group.require_same(message, "the messages"));
  });
}

TEST(Ranks, SkipTheSameStepsInF16AndChooseTheSameScale) {
  for (const auto* scale : {"dynamic", "auto"}) {
    on_ranks(2, [&](distributed::Group& group) {
      TrainerOptions options;
      options.epochs = 2;
      options.quiet = true;
      options.precision = "f16";
      options.loss_scale = scale;
      options.histogram_every = 4;
      RankRun run(&group);
      run.at_step(1, 3, [](const at::Tensor& logits) {  // the loss is finite, its gradient is not
        at::Tensor result = logits.clone();
        result.register_hook([](const at::Tensor& g) { return g * std::numeric_limits<float>::infinity(); });
        return result;
      });
      const auto outcome = run.train(options);
      EXPECT_EQ(outcome.steps[1].skipped_steps + 1, outcome.steps[2].skipped_steps);
      std::string seen;
      for (const auto& step : outcome.steps)
        seen += std::to_string(step.skipped_steps) + " " + std::to_string(step.loss_scale) + "\n";
      ASSERT_TRUE(outcome.exponents);
      seen += outcome.exponents->activations.text();
      std::vector<at::Tensor> tensors = run.model->parameters();
      for (const auto& tensor : tensors) seen += std::to_string(tensor.sum().item<double>()) + "\n";
      EXPECT_NO_THROW(group.require_same(seen, "skipped steps, scales, histograms and weights"));
    });
  }
}

TEST(Ranks, OnlyRank0WritesAndTheMetricsAreThoseOfTheSavedNetwork) {
  const TemporaryFolder folder;
  on_ranks(2, [&](distributed::Group& group) {
    auto options = tiny_options(folder / (group.rank() == 0 ? "run" : "other"));
    RankRun run(&group);
    const auto outcome = run.train(options);
    ASSERT_EQ(outcome.evaluations.size(), 2u);
    group.require_same(std::to_string(outcome.evaluations[1].metrics.mean_iou), "the metrics");
    if (group.rank() == 1) {
      EXPECT_FALSE(std::filesystem::exists(folder / "other"));
      return;
    }
    const auto saved = make_tiny(7);
    load_weights(folder / "run/checkpoint.safetensors", *saved);
    data::Loader all(std::make_shared<BrightestColor>(4, 6), loader_options(2));
    EXPECT_EQ(evaluate(*saved, all, {}, {}).metrics.mean_iou, outcome.evaluations[1].metrics.mean_iou);
  });
}

}  // namespace
}  // namespace palimpsest::train
