#include "palimpsest/train/evaluate.h"

#include "palimpsest/nn/state_dict.h"
#include "palimpsest/train/trainer.h"
#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <gtest/gtest.h>

namespace palimpsest::train {
namespace {

using namespace testing;

data::LoaderOptions in_order(int64_t batch_size) {
  auto options = loader_options(batch_size);
  options.shuffle = false;
  options.drop_last = false;
  return options;
}

EvaluationRecord evaluate_tiny(TinySegmenter& model, int64_t batch_size, const std::string& dtype = "f32",
                               const LossOptions& loss = {}) {
  data::Loader loader(std::make_shared<BrightestColor>(7, 6), in_order(batch_size));
  return evaluate(model, loader, loss, TensorFormat::parse(dtype, false));
}

TEST(Evaluate, LossAndMetricsDoNotDependOnTheBatches) {
  const auto model = make_tiny(1);
  const auto one = evaluate_tiny(*model, 1, "f64"), three = evaluate_tiny(*model, 3, "f64");
  EXPECT_EQ(one.images, 7);
  EXPECT_TRUE(one.segmentation);
  EXPECT_NEAR(one.loss, three.loss, kReorderedF64);
  // Bootstrapping counts another number of pixels in each image.
  const LossOptions hard{.kind = "bootstrap", .bootstrap_probability = 0.33, .bootstrap_share = 1};
  EXPECT_NEAR(evaluate_tiny(*model, 1, "f64", hard).loss, evaluate_tiny(*model, 3, "f64", hard).loss,
              kReorderedF64);
  EXPECT_EQ(one.metrics.mean_iou, three.metrics.mean_iou);
  EXPECT_EQ(one.metrics.class_iou.size(), 3u);
  EXPECT_GT(one.metrics.pixel_accuracy, 0);
  EXPECT_LT(one.metrics.pixel_accuracy, 1);
}

/// Images of three sizes in turn.
class MixedSizes : public data::Dataset {
 public:
  explicit MixedSizes(bool segmentation) : segmentation_(segmentation) {}
  int64_t size() const override { return 8; }
  const std::vector<std::string>& class_names() const override { return names_; }
  data::Sample get(int64_t index, Random& random) const override {
    return BrightestColor(size(), 6 + index % 3, segmentation_).get(index, random);
  }

 private:
  bool segmentation_;
  std::vector<std::string> names_{"red", "green", "blue"};
};

TEST(Evaluate, ImagesOfMixedSizesGiveTheMetricsOfABatchOfOne) {
  at::manual_seed(1);
  const auto classifier = std::make_shared<TinyClassifier>();
  const auto evaluate_mixed = [&](bool segmentation, int64_t batch_size) {
    auto options = in_order(batch_size);
    options.split_by_size = true;
    data::Loader loader(std::make_shared<MixedSizes>(segmentation), options);
    const auto format = TensorFormat::parse("f64", false);
    return segmentation ? evaluate(*make_tiny(1), loader, {}, format)
                        : evaluate(*classifier, loader, {}, format);
  };
  for (const bool segmentation : {true, false}) {
    const auto one = evaluate_mixed(segmentation, 1), five = evaluate_mixed(segmentation, 5);
    EXPECT_EQ(five.images, 8);
    EXPECT_NEAR(five.loss, one.loss, kReorderedF64);
    EXPECT_EQ(five.metrics.mean_iou, one.metrics.mean_iou);
    EXPECT_EQ(five.metrics.pixel_accuracy, one.metrics.pixel_accuracy);
    EXPECT_EQ(five.metrics.top1, one.metrics.top1);
    EXPECT_EQ(five.metrics.top5, one.metrics.top5);
  }
}

TEST(Evaluate, LeavesTheModelItsModesAndTheGeneratorAsTheyWere) {
  const auto model = make_tiny(1);
  model->train();
  model->bn1->eval();  // a frozen layer in a training network
  const at::Tensor running = model->bn1->running_mean.clone();
  at::manual_seed(4);
  const at::Tensor drawn = at::randn({3});
  at::manual_seed(4);
  evaluate_tiny(*model, 2);
  EXPECT_TRUE(at::randn({3}).equal(drawn));
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(model->conv1->is_training());
  EXPECT_FALSE(model->bn1->is_training());
  EXPECT_TRUE(model->bn1->running_mean.equal(running));
  EXPECT_EQ(model->training_steps, 0);
}

TEST(Evaluate, RestoresTheModesWhenItFails) {
  const auto model = make_tiny(1);
  model->hook = [](TinySegmenter&, const at::Tensor&) -> at::Tensor {
    throw Error(ErrorKind::kData, "unreadable");
  };
  expect_error(ErrorKind::kData, {"unreadable"}, [&] { evaluate_tiny(*model, 2); });
  EXPECT_TRUE(model->is_training());
}

TEST(Evaluate, RecordsNoGradients) {
  const auto model = make_tiny(1);
  model->hook = [](TinySegmenter&, const at::Tensor& logits) {
    EXPECT_FALSE(logits.requires_grad());
    return logits;
  };
  evaluate_tiny(*model, 2);
}

TEST(Evaluate, StopsBetweenBatchesWhenAsked) {
  const auto model = make_tiny(1);
  data::Loader loader(std::make_shared<BrightestColor>(7, 6), in_order(2));
  int64_t polls = 0;
  LoaderBatches batches(loader);
  const auto record = evaluate_unless([&] { return ++polls == 2; }, *model, batches, {}, {});
  EXPECT_FALSE(record.has_value());
  EXPECT_EQ(polls, 2);
  EXPECT_TRUE(model->is_training());
}

TEST(Evaluate, InClassificationTheIgnoreIdIsAClassLikeAnyOther) {
  at::manual_seed(2);
  TinyClassifier model(300);
  data::Loader loader(std::make_shared<BrightestColor>(6, 4, /*segmentation=*/false, /*label_offset=*/254),
                      in_order(6));
  const auto record = evaluate(model, loader, {}, TensorFormat{});  // labels 254, 255, 256; ignore_id 255
  EXPECT_FALSE(record.segmentation);
  EXPECT_GT(record.loss, 0);
  at::NoGradGuard no_grad;
  model.fc->bias[255] = 100;
  EXPECT_DOUBLE_EQ(evaluate(model, loader, {}, TensorFormat{}).metrics.top1, 1.0 / 3);
}

TEST(Evaluate, InClassificationALabelThatIsNoClassIsAnErrorWithoutAnIgnoreId) {
  TinyClassifier model(3);
  data::Loader loader(std::make_shared<BrightestColor>(4, 6, /*segmentation=*/false, /*label_offset=*/7),
                      in_order(2));
  try {
    evaluate(model, loader, {}, {});
    FAIL() << "a label out of range was accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("is no class of the model (0 to 2): set the number of classes"), std::string::npos)
        << text;
    EXPECT_EQ(text.find("ignore id"), std::string::npos) << text;
    EXPECT_EQ(error.kind(), ErrorKind::kData);
  }
}

TEST(Evaluate, NoImageAtAllIsAnError) {
  const auto model = make_tiny(1);
  auto options = in_order(8);
  options.drop_last = true;
  data::Loader loader(std::make_shared<BrightestColor>(7, 6), options);
  expect_error(ErrorKind::kUsage, {"7 examples", "batch of 8"},
               [&] { evaluate(*model, loader, {}, TensorFormat{}); });
}

TEST(Evaluate, TheWeightedLossOfAWindowAsLargeAsTheImageIsThatOfTheImage) {
  for (const char* kind : {"cross_entropy", "bootstrap"}) {
    const LossOptions loss{
        .kind = kind, .bootstrap_share = 0.4, .label_smoothing = 0.1, .class_weights = {1, 3, 0.5}};
    const auto loss_of = [&](const ViewOptions& views) {
      data::Loader loader(std::make_shared<testing::BrightestColor>(4, 6), testing::loader_options(2));
      LoaderBatches batches(loader);
      EvaluationOptions options;
      options.loss = loss;
      options.format = TensorFormat::parse("f64", false);
      options.views = views;
      return evaluate(*testing::make_tiny(1), batches, options).loss;
    };
    const double whole = loss_of({}), windows = loss_of({.window = 100});
    EXPECT_NEAR(windows, whole, testing::kReorderedF64) << kind;
  }
}

EvaluationRecord evaluate_batches(const Network& network, bool segmentation, int64_t images, bool late,
                                  int64_t* waits = nullptr, int64_t label_offset = 0) {
  data::Loader loader(std::make_shared<BrightestColor>(images, 6, segmentation, label_offset), in_order(2));
  LoaderBatches batches(loader);
  EvaluationOptions options;
  options.confusion_classes = 3;
  options.reads_late = late;
  const OperatorCalls calls;
  const EvaluationRecord record = evaluate(network, batches, options);
  if (waits) *waits = calls.waits();
  return record;
}

TEST(Evaluate, ReadsItsNumbersOnceAtTheEndIfItReadsLate) {
  at::manual_seed(1);
  const auto segmenter = make_tiny(1);
  const auto classifier = std::make_shared<TinyClassifier>();
  for (const bool segmentation : {true, false}) {
    const Network network = segmentation ? Network(segmenter) : Network(classifier);
    const auto want = evaluate_batches(network, segmentation, 16, false);
    int64_t few = 0, many = 0, at_once = 0;
    const auto got = evaluate_batches(network, segmentation, 16, true, &many);
    EXPECT_EQ(got.loss, want.loss);
    EXPECT_EQ(got.confusion, want.confusion);
    EXPECT_EQ(got.metrics.mean_iou, want.metrics.mean_iou);
    EXPECT_EQ(got.metrics.top1, want.metrics.top1);
    EXPECT_EQ(got.images, want.images);
    evaluate_batches(network, segmentation, 4, true, &few);
    EXPECT_EQ(many, few) << "no batch waits";
    EXPECT_LE(many, 3) << "a wrong label, the loss and the counts";
    evaluate_batches(network, segmentation, 16, false, &at_once);
    EXPECT_GE(at_once, 8) << "the counter counts";
  }
}

TEST(Evaluate, TheLossDoesNotDependOnTheBatchWhereAClassHasNoWeight) {
  const auto classifier = std::make_shared<TinyClassifier>();
  const auto loss_of = [&](int64_t batch, bool late) {
    data::Loader loader(std::make_shared<BrightestColor>(12, 6, /*segmentation=*/false), in_order(batch));
    LoaderBatches batches(loader);
    EvaluationOptions options;
    options.loss = {.label_smoothing = 0.2, .class_weights = {0, 1, 2}};
    options.reads_late = late;
    return evaluate(classifier, batches, options).loss;
  };
  const double whole = loss_of(12, false);
  for (const bool late : {false, true})
    for (const int64_t batch : {1, 2, 12}) EXPECT_NEAR(loss_of(batch, late), whole, 1e-6 * whole) << batch;
}

TEST(Evaluate, AWrongLabelIsTheSameErrorWhenItIsReadLate) {
  const auto classifier = std::make_shared<TinyClassifier>();
  for (const bool late : {false, true})
    expect_error(ErrorKind::kData, {"label 3 is no class of the model (0 to 2)"},
                 [&] { evaluate_batches(classifier, false, 4, late, nullptr, /*label_offset=*/1); });
}

}  // namespace
}  // namespace palimpsest::train
