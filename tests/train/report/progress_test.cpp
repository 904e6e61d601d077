#include "palimpsest/train/report/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <thread>

namespace palimpsest::train {
namespace {

StepRecord record(int64_t step) {
  StepRecord r{.step = step, .epoch = 2, .loss = 0.81234, .lr = 0.0025};
  r.images_per_second = 34.21;
  r.eta_seconds = 3723;
  r.current_bytes = int64_t{512} << 20;
  r.peak_bytes = int64_t{840} << 20;
  return r;
}

TEST(Progress, ElsewhereThanOnATerminalEachLoggedStepIsAPlainLine) {
  std::ostringstream out;
  {
    Progress progress(out, /*columns=*/0, 100, 2);
    progress.step(record(9), /*logged=*/false);
    progress.step(record(10), /*logged=*/true);
  }
  EXPECT_EQ(out.str(),
            "step 10/100  epoch 2/2  loss 0.8123  lr 0.0025  34.2 images/s  eta 1:02:03  memory 512 MiB now, "
            "840 MiB peak\n");
}

TEST(Progress, WithoutTheCountingAllocatorNothingIsSaidOfMemory) {
  std::ostringstream out;
  Progress progress(out, 0, 100, 2);
  auto r = record(10);
  r.peak_bytes = 0;
  progress.step(r, true);
  EXPECT_EQ(out.str().find("memory"), std::string::npos);
}

TEST(Progress, OnATerminalOneLineIsRedrawnAndFitsItsWidth) {
  std::ostringstream out;
  {
    Progress progress(out, /*columns=*/60, 100, 2);
    progress.step(record(50), false);
    const auto drawn = out.str().size();
    progress.step(record(51), false);
    EXPECT_EQ(out.str().size(), drawn) << "at most ten times per second";
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    progress.step(record(52), false);
    EXPECT_GT(out.str().size(), drawn);
  }
  const std::string text = out.str();
  EXPECT_EQ(text.substr(0, text.find("\x1b")), "\rstep 50/100  loss 0.8123  34.2 images/s  eta 1:02:03");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << "the bar is ended once";
  EXPECT_EQ(text.back(), '\n');
  EXPECT_LT(text.find("\x1b[K"), 61u);
}

std::string line_of(int columns) {
  std::ostringstream out;
  Progress progress(out, columns, 1000, 10);
  StepRecord r = record(370);
  r.epoch = 4;
  progress.step(r, true);
  const std::string text = out.str();
  return text.substr(1, text.find('\x1b') - 1);
}

TEST(Progress, ANarrowTerminalLosesWholeParts) {
  const std::string wide =
      "[=======>            ]  37 %  step 370/1000  epoch 4/10  loss 0.8123  lr 0.0025  34.2 images/s  eta "
      "1:02:03  memory 512 MiB now, 840 MiB peak";
  const auto columns = static_cast<int>(wide.size()) + 1;
  EXPECT_EQ(line_of(columns), wide);
  EXPECT_EQ(line_of(columns - 1), wide.substr(24));
  EXPECT_EQ(line_of(100),
            "37 %  step 370/1000  epoch 4/10  loss 0.8123  lr 0.0025  34.2 images/s  eta 1:02:03");
  EXPECT_EQ(line_of(80), "37 %  step 370/1000  epoch 4/10  loss 0.8123  34.2 images/s  eta 1:02:03");
  EXPECT_EQ(line_of(60), "step 370/1000  loss 0.8123  34.2 images/s  eta 1:02:03");
  EXPECT_EQ(line_of(30), "step 370/1000  eta 1:02:03");
  EXPECT_EQ(line_of(10), "step 370/");
}

TEST(Progress, EvaluationsAndNotesAreLinesOfTheirOwnOverAnOpenBar) {
  std::ostringstream out;
  Progress progress(out, 80, 100, 2);
  progress.step(record(100), true);
  EvaluationRecord evaluation;
  evaluation.step = 100;
  evaluation.loss = 0.5;
  evaluation.segmentation = true;
  evaluation.metrics.mean_iou = 0.6123;
  evaluation.metrics.pixel_accuracy = 0.9;
  evaluation.images = 16;
  progress.evaluation(evaluation);
  progress.note("something");
  EXPECT_NE(
      out.str().find(
          "\r\x1b[K"
          "evaluation after step 100: loss 0.5000  mean IoU 61.23 %  pixel accuracy 90.00 %  (16 images)\n"
          "note: something\n"),
      std::string::npos)
      << out.str();
}

TEST(Progress, ClassificationIsToldByItsRanks) {
  std::ostringstream out;
  Progress progress(out, 0, 100, 2);
  EvaluationRecord evaluation;
  evaluation.metrics.top1 = 0.25;
  evaluation.metrics.top5 = 0.75;
  progress.evaluation(evaluation);
  EXPECT_NE(out.str().find("top-1 25.00 %  top-5 75.00 %"), std::string::npos);
}

}  // namespace
}  // namespace palimpsest::train
