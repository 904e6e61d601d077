#include "palimpsest/train/best.h"

#include "tests/train/support.h"

#include <gtest/gtest.h>

#include <limits>

namespace palimpsest::train {
namespace {

using testing::expect_error;

EvaluationRecord record_of(int64_t step, double loss, double iou, double top1, bool segmentation) {
  EvaluationRecord record;
  record.step = step;
  record.loss = loss;
  record.metrics.mean_iou = iou;
  record.metrics.top1 = top1;
  record.segmentation = segmentation;
  return record;
}

TEST(Best, TakesTheLargestMetricOrTheSmallestLoss) {
  for (const bool segmentation : {true, false}) {
    const auto with = [&](int64_t step, double loss, double metric) {
      return record_of(step, loss, segmentation ? metric : 9, segmentation ? 9 : metric, segmentation);
    };
    Best metric("metric", 0), loss("loss", 0);
    EXPECT_TRUE(metric.add(with(1, 0.5, 0.3)));
    EXPECT_TRUE(loss.add(with(1, 0.5, 0.3)));
    EXPECT_FALSE(metric.add(with(2, 0.4, 0.3))) << "equal";
    EXPECT_TRUE(loss.add(with(2, 0.4, 0.3)));
    EXPECT_TRUE(metric.add(with(3, 0.6, 0.31)));
    EXPECT_FALSE(loss.add(with(3, 0.6, 0.31)));
    EXPECT_EQ(metric.state().step, 3);
    EXPECT_EQ(*metric.state().value, 0.31);
    EXPECT_EQ(loss.state().step, 2);
    EXPECT_EQ(loss.state().evaluations_since, 1);
  }
}

TEST(Best, IsExhaustedAfterPatienceEvaluationsWithoutABetterOne) {
  Best best("loss", 2);
  const auto add = [&](int64_t step, double loss) { return best.add(record_of(step, loss, 0, 0, true)); };
  EXPECT_TRUE(add(1, 1));
  EXPECT_FALSE(add(2, 2));
  EXPECT_FALSE(best.is_exhausted());
  EXPECT_TRUE(add(3, 0.5)) << "a better one begins again";
  EXPECT_FALSE(add(4, 0.5));
  EXPECT_FALSE(add(5, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_TRUE(best.is_exhausted());
  EXPECT_EQ(best.text(), "no better loss than 0.5000 of step 3 in 2 evaluations");
  Best resumed("loss", 3);
  resumed.resume(best.state());
  EXPECT_FALSE(resumed.is_exhausted()) << "more patience goes on";
}

TEST(Best, AValueThatIsNotFiniteIsNeverTheBest) {
  Best best("loss", 1);
  for (const double loss :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    EXPECT_FALSE(best.add(record_of(1, loss, 0, 0, true)));
  EXPECT_FALSE(best.state().value);
  EXPECT_EQ(best.text(), "no evaluation of 2 has a value");
}

TEST(Best, OptionsThatCannotWorkAreErrors) {
  expect_error(ErrorKind::kUsage, {"unknown keep_best 'metrik'", "did you mean 'metric'"},
               [] { check_best("metrik", 0); });
  expect_error(ErrorKind::kUsage, {"patience", "-1"}, [] { check_best("loss", -1); });
  expect_error(ErrorKind::kUsage, {"patience needs keep_best", "patience 3"}, [] { check_best("none", 3); });
}

}  // namespace
}  // namespace palimpsest::train
