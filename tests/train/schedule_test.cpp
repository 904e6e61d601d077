#include "palimpsest/train/schedule.h"

#include "tests/train/support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <stdexcept>

namespace palimpsest::train {
namespace {

using testing::expect_error;

ScheduleOptions kind(const std::string& name) {
  ScheduleOptions options;
  options.kind = name;
  return options;
}

TEST(Schedule, PolyFallsAsThePaperSays) {
  for (const int64_t step : {0, 1, 500, 999})
    EXPECT_NEAR(learning_rate(kind("poly"), 2.5e-3, step, 1000, 10),
                2.5e-3 * std::pow(1 - static_cast<double>(step) / 1000, 0.9), testing::kRoundingF64);
}

TEST(Schedule, StepDividesByTenEveryThirtyEpochs) {
  const auto at_epoch = [](int64_t epoch) {
    return learning_rate(kind("step"), 0.1, epoch * 7 + 6, 90 * 7, 7);
  };
  EXPECT_DOUBLE_EQ(at_epoch(0), 0.1);
  EXPECT_DOUBLE_EQ(at_epoch(29), 0.1);
  EXPECT_NEAR(at_epoch(30), 0.01, testing::kRoundingF64);
  EXPECT_NEAR(at_epoch(59), 0.01, testing::kRoundingF64);
  EXPECT_NEAR(at_epoch(89), 0.001, testing::kRoundingF64);
}

TEST(Schedule, DropsComeAtHalfAndAtThreeQuarters) {
  auto options = kind("drops");
  for (const auto& [step, want] :
       {std::pair{0, 0.1}, {149, 0.1}, {150, 0.01}, {224, 0.01}, {225, 0.001}, {299, 0.001}})
    EXPECT_NEAR(learning_rate(options, 0.1, step, 300, 1), want, testing::kRoundingF64) << step;
  options.step_factor = 0.5;
  EXPECT_NEAR(learning_rate(options, 0.1, 299, 300, 1), 0.025, testing::kRoundingF64);
}

TEST(Schedule, LinearGoesFromTheBaseToTheFinalRate) {
  auto options = kind("linear");
  options.final_lr = 1e-6;  // WideResNet-38: 0.1 to 1e-6
  EXPECT_DOUBLE_EQ(learning_rate(options, 0.1, 0, 1000, 10), 0.1);
  EXPECT_NEAR(learning_rate(options, 0.1, 500, 1000, 10), (0.1 + 1e-6) / 2, testing::kRoundingF64);
  EXPECT_NEAR(learning_rate(options, 0.1, 999, 1000, 10), 1e-6 + (0.1 - 1e-6) / 1000, testing::kRoundingF64);
}

TEST(Schedule, CosineHasTheShapeOfTheDenseNetPaper) {
  // 0.05 (cos(pi t / 100) + 1) over 100 epochs, t in epochs; here 20 steps per epoch.
  for (const int64_t step : {0, 1, 20, 1000, 1500, 1999}) {
    const double t = static_cast<double>(step) / 20;
    EXPECT_NEAR(learning_rate(kind("cosine"), 0.1, step, 2000, 20),
                0.05 * (std::cos(std::numbers::pi * t / 100) + 1), testing::kRoundingF64);
  }
  auto options = kind("cosine");
  options.final_lr = 0.02;
  EXPECT_NEAR(learning_rate(options, 0.1, 1000, 2000, 20), 0.06, testing::kRoundingF64);
}

TEST(Schedule, ConstantStays) {
  EXPECT_EQ(learning_rate(kind("constant"), 0.3, 0, 10, 5), 0.3);
  EXPECT_EQ(learning_rate(kind("constant"), 0.3, 9, 10, 5), 0.3);
}

TEST(Schedule, WarmupRisesEvenlyToTheBaseRateAndTheScheduleTakesOverWithoutAJump) {
  for (const auto& name : schedule_names()) {
    auto options = kind(name);
    options.warmup_epochs = 1.5;  // of 10 steps: 15 steps
    for (int64_t step = 0; step < 15; ++step)
      EXPECT_NEAR(learning_rate(options, 0.4, step, 100, 10), 0.4 * static_cast<double>(step + 1) / 16,
                  testing::kRoundingF64)
          << name;
    EXPECT_DOUBLE_EQ(learning_rate(options, 0.4, 15, 100, 10), 0.4) << name;
  }
  auto poly = kind("poly");
  poly.warmup_epochs = 2;
  EXPECT_NEAR(learning_rate(poly, 1, 60, 100, 10), std::pow(0.5, 0.9),
              testing::kRoundingF64);  // halfway through the other 80
}

TEST(Schedule, EveryRateIsPositiveAndAtMostTheBase) {
  for (const auto& name : schedule_names()) {
    for (int64_t step = 0; step < 60; ++step) {
      const double lr = learning_rate(kind(name), 0.1, step, 60, 6);
      EXPECT_GT(lr, 0) << name << " at step " << step;
      EXPECT_LE(lr, 0.1) << name << " at step " << step;
    }
  }
}

TEST(Schedule, AnUnknownKindIsAnErrorThatSuggestsTheNearest) {
  expect_error(ErrorKind::kUsage, {"schedule 'cosin'", "did you mean 'cosine'"},
               [] { learning_rate(kind("cosin"), 0.1, 0, 10, 5); });
}

TEST(Schedule, ValuesOutOfRangeAreErrorsWithNameAndValue) {
  const auto fails = [](const std::string& what, const std::string& value, auto change) {
    ScheduleOptions options;
    change(options);
    expect_error(ErrorKind::kUsage, {what, value}, [&] { check_schedule(options, 10, 5); });
  };
  fails("power", "-1", [](auto& o) { o.power = -1; });
  fails("step_epochs", "0", [](auto& o) { o.step_epochs = 0; });
  fails("step_factor", "1.5", [](auto& o) { o.step_factor = 1.5; });
  fails("final_lr", "-0.1", [](auto& o) { o.final_lr = -0.1; });
  fails("warmup_epochs", "-2", [](auto& o) { o.warmup_epochs = -2; });
  fails("warmup_epochs 2 are 10 steps of 5 per epoch", "the training has 10",
        [](auto& o) { o.warmup_epochs = 2; });
  // Below 2 epochs, and yet all 10 steps.
  fails("warmup_epochs 1.99 are 10 steps", "the training has 10", [](auto& o) { o.warmup_epochs = 1.99; });
  fails("warmup_epochs", "nan", [](auto& o) { o.warmup_epochs = std::nan(""); });
}

TEST(Schedule, AStepOutsideOfTheTrainingIsRefused) {
  EXPECT_THROW(learning_rate(kind("poly"), 0.1, 10, 10, 5), std::invalid_argument);
  EXPECT_THROW(learning_rate(kind("poly"), 0.1, -1, 10, 5), std::invalid_argument);
}

}  // namespace
}  // namespace palimpsest::train
