#include "palimpsest/train/metrics.h"

#include "tests/train/support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace palimpsest::train {
namespace {

using testing::expect_error;

/// Logits (1, classes, 1, pixels) whose argmax is `prediction`.
at::Tensor predicting(const std::vector<int64_t>& prediction, int64_t classes) {
  const at::Tensor ids = at::tensor(prediction).view({1, 1, 1, -1});
  return at::zeros({1, classes, 1, ids.size(3)}).scatter(1, ids, 1.0);
}

at::Tensor truth(const std::vector<int64_t>& ids) {
  return at::tensor(ids).view({1, 1, -1});
}

TEST(Metrics, ConfusionAndIouAreThoseComputedByHand) {
  MetricsAccumulator metrics(/*segmentation=*/true, 4, 255);
  metrics.add(predicting({0, 0, 1, 1, 2, 0}, 4), truth({0, 0, 0, 1, 1, 255}));
  metrics.add(predicting({1, 2}, 4), truth({1, 2}));
  const std::vector<int64_t> expected{2, 1, 0, 0,   // truth 0: twice right, once taken for 1
                                      0, 2, 1, 0,   //
                                      0, 0, 1, 0,   //
                                      0, 0, 0, 0};  // class 3 never occurs
  EXPECT_EQ(metrics.confusion(), expected);
  const Metrics result = metrics.result();
  EXPECT_DOUBLE_EQ(result.class_iou[0], 2.0 / 3);
  EXPECT_DOUBLE_EQ(result.class_iou[1], 2.0 / 4);
  EXPECT_DOUBLE_EQ(result.class_iou[2], 1.0 / 2);
  EXPECT_TRUE(std::isnan(result.class_iou[3]));
  EXPECT_DOUBLE_EQ(result.mean_iou, (2.0 / 3 + 0.5 + 0.5) / 3);
  EXPECT_DOUBLE_EQ(result.pixel_accuracy, 5.0 / 7);
}

TEST(Metrics, AClassThatIsOnlyPredictedCountsWithZero) {
  MetricsAccumulator metrics(true, 3, 255);
  metrics.add(predicting({0, 2}, 3), truth({0, 0}));
  EXPECT_DOUBLE_EQ(metrics.result().class_iou[2], 0);
  EXPECT_DOUBLE_EQ(metrics.result().mean_iou, (0.5 + 0) / 2);
}

TEST(Metrics, AnIgnoredClassIsLeftOutOfTheMean) {
  MetricsAccumulator metrics(true, 3, /*ignore_id=*/0);
  metrics.add(predicting({0, 1, 2, 2, 1}, 3), truth({1, 1, 2, 0, 0}));  // class 0 is predicted, too
  const Metrics result = metrics.result();
  EXPECT_TRUE(std::isnan(result.class_iou[0]));
  EXPECT_DOUBLE_EQ(result.mean_iou, (0.5 + 1) / 2);
  EXPECT_DOUBLE_EQ(result.pixel_accuracy, 2.0 / 3);
}

TEST(Metrics, AClassificationCountsItsConfusionIfAsked) {
  MetricsAccumulator metrics(/*segmentation=*/false, 3, -1, /*counts_pairs=*/true);
  const at::Tensor scores = at::eye(3).index_select(0, at::tensor({0, 2, 2, 1}));
  metrics.add(scores, at::tensor({0, 0, 2, 2}));
  const std::vector<int64_t> expected{1, 0, 1,   // truth 0: once right, once taken for 2
                                      0, 0, 0,   //
                                      0, 1, 1};  //
  EXPECT_EQ(metrics.confusion(), expected);
  MetricsAccumulator sum(false, 3, -1, true);
  sum.set_counters(metrics.counters());
  EXPECT_EQ(sum.confusion(), expected);
  EXPECT_DOUBLE_EQ(sum.result().top1, 0.5);
  EXPECT_TRUE(MetricsAccumulator(false, 3, -1).confusion().empty());
}

TEST(Metrics, BatchesAndLayoutsMakeNoDifference) {
  at::manual_seed(3);
  const at::Tensor logits = at::randn({4, 5, 6, 7});
  const at::Tensor targets = at::randint(0, 5, {4, 6, 7}, at::kLong);
  MetricsAccumulator at_once(true, 5, 2), one_by_one(true, 5, 2);
  at_once.add(logits, targets);
  for (int64_t i = 0; i < 4; ++i)
    one_by_one.add(logits.narrow(0, i, 1).contiguous(at::MemoryFormat::ChannelsLast),
                   targets.narrow(0, i, 1));
  EXPECT_EQ(at_once.confusion(), one_by_one.confusion());
}

TEST(Metrics, NothingButVoidIsNotANumber) {
  MetricsAccumulator metrics(true, 3, 255);
  metrics.add(predicting({0, 1}, 3), truth({255, 255}));
  EXPECT_TRUE(std::isnan(metrics.result().mean_iou));
  EXPECT_TRUE(std::isnan(metrics.result().pixel_accuracy));
}

TEST(Metrics, TopOneAndTopFiveCountRanks) {
  MetricsAccumulator metrics(/*segmentation=*/false, 7, -1);
  const at::Tensor scores = at::tensor({7.f, 6.f, 5.f, 4.f, 3.f, 2.f, 1.f}).repeat({3, 1});
  metrics.add(scores, at::tensor({int64_t{0}, int64_t{4}, int64_t{5}}));  // ranks 0, 4, 5
  EXPECT_DOUBLE_EQ(metrics.result().top1, 1.0 / 3);
  EXPECT_DOUBLE_EQ(metrics.result().top5, 2.0 / 3);
}

TEST(Metrics, WithFiveClassesOrFewerTopFiveIsAlwaysRight) {
  for (const int64_t classes : {2, 5}) {
    MetricsAccumulator metrics(false, classes, -1);
    metrics.add(at::arange(classes).to(at::kFloat).unsqueeze(0), at::tensor({int64_t{0}}));
    EXPECT_DOUBLE_EQ(metrics.result().top1, 0);
    EXPECT_DOUBLE_EQ(metrics.result().top5, 1);
  }
}

TEST(Metrics, EqualScoresRankByClassAndNanIsAMiss) {
  MetricsAccumulator metrics(false, 3, -1);
  metrics.add(at::zeros({2, 3}), at::tensor({int64_t{0}, int64_t{1}}));
  EXPECT_DOUBLE_EQ(metrics.result().top1, 0.5);
  metrics.add(at::full({2, 3}, std::numeric_limits<float>::quiet_NaN()),
              at::tensor({int64_t{0}, int64_t{1}}));
  EXPECT_DOUBLE_EQ(metrics.result().top1, 0.25);
  EXPECT_DOUBLE_EQ(metrics.result().top5, 0.5);
}

TEST(Metrics, ALabelThatIsNoClassIsAnError) {
  MetricsAccumulator metrics(true, 3, 255);
  expect_error(ErrorKind::kData, {"label 7", "0 to 2", "255"},
               [&] { metrics.add(predicting({0}, 3), truth({7})); });
  expect_error(ErrorKind::kData, {"label -1"}, [&] { metrics.add(predicting({0}, 3), truth({-1})); });
}

TEST(Metrics, ShapesThatDoNotFitAreRefused) {
  MetricsAccumulator metrics(true, 3, 255);
  EXPECT_THROW(metrics.add(at::zeros({1, 4, 2, 2}), at::zeros({1, 2, 2}, at::kLong)), c10::Error);
  EXPECT_THROW(metrics.add(at::zeros({1, 3}), at::zeros({1}, at::kLong)), c10::Error);
}

TEST(Metrics, CountsOnTheDeviceAreThoseOfTheHostAndWaitForNoBatch) {
  at::manual_seed(5);
  MetricsAccumulator pixels(true, 5, 2, false, /*reads_late=*/false), late_pixels(true, 5, 2, false, true);
  MetricsAccumulator labels(false, 7, 6, true, false), late_labels(false, 7, 6, true, true);
  for (int batch = 0; batch < 3; ++batch) {
    const at::Tensor maps = at::randn({4, 5, 3, 4}), ids = at::randint(0, 5, {4, 6, 7}, at::kLong);
    const at::Tensor scores = at::randn({9, 7}), truth = at::randint(0, 7, {9}, at::kLong);
    scores[batch].fill_(std::numeric_limits<float>::quiet_NaN());
    pixels.add(maps, ids);
    labels.add(scores, truth);
    const testing::OperatorCalls calls;
    late_pixels.add(maps, ids);
    late_labels.add(scores, truth);
    EXPECT_EQ(calls.waits(), 0) << calls.text();
  }
  EXPECT_EQ(late_pixels.confusion(), pixels.confusion());
  EXPECT_EQ(late_pixels.result().mean_iou, pixels.result().mean_iou);
  EXPECT_EQ(late_labels.counters(), labels.counters());
  EXPECT_EQ(late_labels.result().top5, labels.result().top5);
  late_labels.add(at::eye(7), at::arange(7));  // goes on after it was read
  labels.add(at::eye(7), at::arange(7));
  EXPECT_EQ(late_labels.counters(), labels.counters());
}

TEST(Metrics, AWrongLabelOnTheDeviceIsAnErrorWhenTheCountsAreRead) {
  MetricsAccumulator pixels(true, 3, 255, false, true), labels(false, 3, -1, false, true);
  pixels.add(predicting({0, 1, 2}, 3), truth({0, 7, -9}));
  pixels.add(predicting({0}, 3), truth({8}));
  expect_error(ErrorKind::kData, {"label 7", "0 to 2", "255"}, [&] { pixels.result(); });
  labels.add(at::eye(3), at::tensor({int64_t{0}, int64_t{3}, int64_t{1}}));
  expect_error(ErrorKind::kData, {"label 3"}, [&] { labels.counters(); });
}

}  // namespace
}  // namespace palimpsest::train
