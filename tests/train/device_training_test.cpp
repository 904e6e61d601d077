// Training and evaluation on a device that is not the CPU: where tensors are, what is copied when, and where
// the host waits.
#include "palimpsest/train/common/batch_feed.h"
#include "palimpsest/train/common/late_numbers.h"
#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/trainer.h"
#include "tests/support/emulated_device.h"
#include "tests/train/run.h"
#include "tests/train/support.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::train {
namespace {

namespace emulated = palimpsest::testing::emulated_device;
using namespace testing;

const c10::Device kDevice{c10::DeviceType::PrivateUse1, 0};

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    emulated::install();
    emulated::take_events();
  }
};

/// Two linear layers: one logit per class for a pixel, or for the image. They are made on the device, because
/// libtorch does not move parameters to a device of PrivateUse1 in place.
struct TwoLayers : torch::nn::Module {
  TwoLayers(bool segments, c10::Device device) : segments(segments) {
    const auto make = [&](const char* name, at::IntArrayRef shape) {
      return register_parameter(name, (at::randn(shape) * 0.3).to(device));
    };
    w1 = make("w1", {8, 3});
    b1 = make("b1", {8});
    w2 = make("w2", {3, 8});
    b2 = make("b2", {3});
  }
  at::Tensor forward(const at::Tensor& images) {
    if (on_forward) on_forward();
    const at::Tensor x = at::linear(at::linear(images.permute({0, 2, 3, 1}), w1, b1).relu(), w2, b2);
    return segments ? x.permute({0, 3, 1, 2}).contiguous() : x.mean(at::IntArrayRef{1, 2});
  }
  bool segments;
  std::function<void()> on_forward;
  at::Tensor w1, b1, w2, b2;
};

std::shared_ptr<TwoLayers> two_layers(bool segments, c10::Device device = c10::DeviceType::CPU) {
  at::manual_seed(8);
  return std::make_shared<TwoLayers>(segments, device);
}

/// Batches of bytes whose values are the number of the batch.
class Numbered : public BatchSource {
 public:
  explicit Numbered(int64_t batches, int64_t fails_at = -1) : batches_(batches), fails_at_(fails_at) {}
  int64_t batches() const override { return batches_; }
  void start_epoch(int64_t, int64_t first) override { next_ = first; }
  std::optional<data::Batch> next() override {
    if (next_ == fails_at_) {
      ++next_;
      throw Error(ErrorKind::kData, "a broken image");
    }
    if (next_ >= batches_) return std::nullopt;
    bad_.push_back({next_, "bad in batch " + std::to_string(next_)});
    data::Batch batch{
        at::full({2, 3, 3, 3}, next_, at::kByte), at::full({2, 3, 3}, next_ % 3, at::kByte), {}};
    batch.normalization.mean = {0.5, 0.5, 0.5};
    ++next_;
    return batch;
  }
  std::vector<data::BadExample> take_bad() override { return std::exchange(bad_, {}); }
  int64_t batch_size() const override { return 2; }
  uint64_t seed() const override { return 0; }

 private:
  int64_t batches_, fails_at_, next_ = 0;
  std::vector<data::BadExample> bad_;
};

using OnDeviceFeed = OnDevice;
using OnDeviceTraining = OnDevice;

TEST_F(OnDeviceFeed, SendsBytesFromPinnedMemoryOneBatchAheadOnAStreamOfItsOwn) {
  Numbered source(3);
  BatchFeed feed(source, kDevice);
  feed.start_epoch(0, 0);
  const auto sends = [] {
    int64_t copies = 0;
    for (const std::string& event : emulated::take_events()) {
      if (!event.starts_with("copy")) continue;
      ++copies;
      EXPECT_NE(event.find("bytes of pinned memory"), std::string::npos) << event;
      EXPECT_EQ(event.find("on stream 0"), std::string::npos) << event;
    }
    return copies;
  };
  const int64_t waits = emulated::host_waits();
  const OperatorCalls calls;
  for (int64_t i = 0; i < 3; ++i) {
    const auto batch = feed.next();
    const auto events = emulated::take_events();
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->images.device(), kDevice);
    EXPECT_EQ(batch->images.scalar_type(), at::kByte);
    EXPECT_EQ(batch->targets.device(), kDevice);
    // The stream of the step waits for the copy, and the allocator knows who reads the memory.
    int64_t blocks = 0, uses = 0;
    for (const std::string& event : events) {
      blocks += event.starts_with("stream 0 waits for event");
      uses += event.ends_with("is used on stream 0") && !event.starts_with("memory of stream 0");
    }
    EXPECT_EQ(blocks, 1);
    EXPECT_EQ(uses, 2) << "images and targets";
    feed.prepare();
    EXPECT_EQ(sends(), i < 2 ? 2 : 0) << "the next batch travels while this one is in use";
    feed.prepare();
    EXPECT_EQ(sends(), 0) << "one batch ahead, not two";
  }
  EXPECT_FALSE(feed.next());
  EXPECT_EQ(calls.waits(), 0) << calls.text();
  EXPECT_EQ(emulated::host_waits(), waits);
}

TEST_F(OnDeviceFeed, KeepsTheOrderTheBadExamplesAndTheErrorsInTheirPlaces) {
  Numbered source(4, /*fails_at=*/2);
  BatchFeed feed(source, kDevice);
  for (int round = 0; round < 2; ++round) {  // a batch that is prepared is dropped by a new epoch
    feed.start_epoch(0, 0);
    feed.take_bad();
    for (int64_t i = 0; i < 4; ++i) {
      if (i == 2) {
        expect_error(ErrorKind::kData, {"a broken image"}, [&] { feed.next(); });
        continue;
      }
      const auto batch = feed.next();
      EXPECT_EQ(batch->images.cpu()[1][2][2][2].item<int64_t>(), i);
      const auto bad = feed.take_bad();
      ASSERT_EQ(bad.size(), 1u) << "of this batch, not of the one ahead";
      EXPECT_EQ(bad[0].index, i);
      feed.prepare();
      if (round == 0 && i == 1) break;
    }
  }
  EXPECT_FALSE(feed.next());
}

TEST_F(OnDeviceFeed, PinnedMemoryIsGivenBack) {
  const int64_t before = emulated::pinned_bytes();
  Numbered source(3);
  BatchFeed feed(source, kDevice);
  feed.start_epoch(0, 0);
  while (feed.next()) feed.prepare();
  EXPECT_EQ(emulated::pinned_bytes(), before);
}

TEST_F(OnDeviceFeed, LateNumbersAreReadBehindTheirEvent) {
  const int64_t waits = emulated::host_waits();
  const OperatorCalls calls;
  const LateNumbers numbers({at::full({}, 3.5, at::TensorOptions(kDevice).dtype(at::kFloat)),
                             at::full({}, 2, at::TensorOptions(kDevice).dtype(at::kDouble))});
  EXPECT_EQ(emulated::host_waits(), waits);
  EXPECT_EQ(numbers.read(), (std::vector<double>{3.5, 2}));
  EXPECT_EQ(emulated::host_waits(), waits + 1);
  EXPECT_EQ(calls.waits(), 0) << calls.text();
}

TrainerOptions device_options(const std::string& device) {
  TrainerOptions options;
  options.epochs = 2;
  options.seed = 5;
  options.optimizer = {.lr = 0.1, .momentum = 0.9, .nesterov = true};
  options.device = device;
  options.quiet = true;
  options.log_every = 1;
  return options;
}

TEST_F(OnDeviceTraining, HasTheLossesTheCheckpointAndTheLogOfTheCpu) {
  for (const bool segments : {true, false})
    for (const char* optimizer : {"sgd", "adamw"}) {
      SCOPED_TRACE(std::string(optimizer) + (segments ? ", pixels" : ", images"));
      const TemporaryFolder on_cpu, on_device;
      std::vector<TrainingOutcome> outcomes;
      for (const auto* folder : {&on_cpu, &on_device}) {
        const auto net =
            two_layers(segments, folder == &on_cpu ? c10::Device(c10::DeviceType::CPU) : kDevice);
        auto options = device_options(folder == &on_cpu ? "cpu" : "emulated:0");
        options.optimizer.kind = optimizer;
        options.optimizer.nesterov = std::string(optimizer) == "sgd";
        options.optimizer.clip_norm = 0.3;
        options.output = folder->path();
        data::Loader loader(std::make_shared<BrightestColor>(20, 6, segments), loader_options(4)),
            validation(std::make_shared<BrightestColor>(4, 6, segments), loader_options(2));
        outcomes.push_back(train(net, loader, &validation, options));
        for (const at::Tensor& parameter : net->parameters())
          EXPECT_EQ(parameter.is_cpu(), folder == &on_cpu);
      }
      ASSERT_EQ(outcomes[1].steps.size(), outcomes[0].steps.size());
      for (std::size_t i = 0; i < outcomes[0].steps.size(); ++i) {
        EXPECT_NEAR(outcomes[1].steps[i].loss, outcomes[0].steps[i].loss, kReorderedF32);
        EXPECT_NEAR(outcomes[1].steps[i].gradient_norm.value(), outcomes[0].steps[i].gradient_norm.value(),
                    kReorderedF32);
      }
      ASSERT_EQ(outcomes[1].evaluations.size(), outcomes[0].evaluations.size());
      EXPECT_NEAR(outcomes[1].evaluations.back().loss, outcomes[0].evaluations.back().loss, kReorderedF32);
      EXPECT_EQ(read_log(on_device.path()).size(), read_log(on_cpu.path()).size());
      // A run may go on on either device: the names and shapes in the checkpoints are the same.
      auto options = device_options("cpu");
      options.optimizer.kind = optimizer;
      options.optimizer.nesterov = std::string(optimizer) == "sgd";
      options.output = on_device.path();
      options.resume = true;
      options.epochs = 3;
      data::Loader loader(std::make_shared<BrightestColor>(20, 6, segments), loader_options(4));
      EXPECT_EQ(train(two_layers(segments), loader, nullptr, options).last_step, 15);
    }
}

TEST_F(OnDeviceTraining, BootstrappingRanksThePixelsOfEachImageAsOnTheCpu) {
  at::manual_seed(3);
  const at::Tensor losses = at::rand({4, 37}, at::kDouble), valid = at::rand({4, 37}).gt(0.3);
  valid[2].fill_(false);
  valid[3].fill_(true);
  losses[3][5] = std::numeric_limits<double>::quiet_NaN();  // ranks first, and shows
  for (const double share : {0.01, 0.25, 1.0})
    for (const double probability : {1.0, 0.6}) {
      const LossOptions options{
          .kind = "bootstrap", .bootstrap_probability = probability, .bootstrap_share = share};
      for (int64_t image = 0; image < 4; ++image) {
        const at::Tensor of_image = losses.narrow(0, image, 1).unsqueeze(0),
                         counts = valid.narrow(0, image, 1);
        const SummedLoss want = loss_of_pixels(of_image, counts, options);
        const SummedLoss got = loss_of_pixels(of_image.to(kDevice), counts.to(kDevice), options);
        EXPECT_EQ(got.weight.item<double>(), want.weight.item<double>()) << image << " " << share;
        EXPECT_EQ(std::isnan(got.sum.item<double>()), image == 3);
        if (image < 3) {
          EXPECT_DOUBLE_EQ(got.sum.item<double>(), want.sum.item<double>()) << image;
        }
      }
    }
}

TEST_F(OnDeviceTraining, TheHostWaitsOncePerStepAndForNoBatchOfAnEvaluation) {
  for (const bool segments : {true, false}) {
    SCOPED_TRACE(segments);
    const auto net = two_layers(segments, kDevice);
    const auto options = [&](bool late) {
      auto o = device_options("emulated:0");
      o.epochs = 1;
      o.optimizer.clip_norm = 0.3;
      o.reads_late = late;
      return o;
    };
    const auto most_waits = [&](bool late) {
      Numbered source(8);
      std::vector<int64_t> seen;
      const OperatorCalls calls;
      net->on_forward = [&] { seen.push_back(calls.waits() + emulated::host_waits()); };
      if (segments) {
        train(net, source, nullptr, options(late));
      } else {
        data::Loader loader(std::make_shared<BrightestColor>(16, 3, false), loader_options(2));
        train(net, loader, nullptr, options(late));
      }
      net->on_forward = nullptr;
      int64_t most = 0;
      for (std::size_t i = 1; i < seen.size(); ++i) most = std::max(most, seen[i] - seen[i - 1]);
      EXPECT_EQ(seen.size(), 8u);
      return most;
    };
    EXPECT_LE(most_waits(true), 1);
    EXPECT_GT(most_waits(false), 1) << "the counter counts";

    EvaluationOptions evaluation;
    evaluation.format = TensorFormat::parse("f32", false, "f32", "emulated:0");
    const auto waits_of_evaluation = [&](int64_t images) {
      data::Loader loader(std::make_shared<BrightestColor>(images, 6, segments), loader_options(2));
      LoaderBatches batches(loader);
      const OperatorCalls calls;
      const int64_t before = emulated::host_waits();
      evaluate(net, batches, evaluation);
      return calls.waits() + emulated::host_waits() - before;
    };
    EXPECT_EQ(waits_of_evaluation(16), waits_of_evaluation(4));
    if (!segments) continue;
    evaluation.views = {.scales = {0.5, 1}, .flip = true, .window = 4};
    evaluation.loss.class_weights = {1, 2, 0.5};
    EXPECT_EQ(waits_of_evaluation(16), waits_of_evaluation(4));
    evaluation.loss.kind = "bootstrap";
    EXPECT_EQ(waits_of_evaluation(16), waits_of_evaluation(4));
  }
}

}  // namespace
}  // namespace palimpsest::train
