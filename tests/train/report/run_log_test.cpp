#include "palimpsest/train/report/run_log.h"

#include "palimpsest/io/atomic_file.h"
#include "tests/train/support.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

namespace palimpsest::train {
namespace {

using testing::expect_error;
using testing::FileSizeLimit;
using testing::TemporaryFolder;

StepRecord step(int64_t number) {
  StepRecord record;
  record.step = number;
  record.loss = 0.1;
  return record;
}

EvaluationRecord evaluation(int64_t number, bool segmentation = true) {
  EvaluationRecord record;
  record.step = number;
  record.segmentation = segmentation;
  record.metrics.class_iou = {0.25, std::nan("")};
  record.metrics.mean_iou = 0.25;
  record.metrics.top5 = 0.75;
  return record;
}

TEST(RunLog, LinesAreJsonWithTheMembersOfTheRecord) {
  const TemporaryFolder folder;
  RunLog log(folder / "log.jsonl");
  StepRecord record{.step = 3, .epoch = 1, .loss = 0.1, .lr = 1e-3, .seconds = 2};
  record.kept_bytes = 123;
  log.write(record);
  log.write(evaluation(3));
  log.write(evaluation(4, /*segmentation=*/false));
  std::ifstream file(folder / "log.jsonl");
  std::string line;
  std::getline(file, line);
  const auto first = nlohmann::json::parse(line);
  EXPECT_EQ(first["type"], "step");
  EXPECT_EQ(first["step"], 3);
  EXPECT_EQ(first["loss"].get<double>(), 0.1) << "every digit is written";
  EXPECT_EQ(first["kept_bytes"], 123);
  std::getline(file, line);
  const auto second = nlohmann::json::parse(line);
  EXPECT_EQ(second["type"], "evaluation");
  EXPECT_EQ(second["class_iou"][0], 0.25);
  EXPECT_TRUE(second["class_iou"][1].is_null()) << "NaN is no JSON";
  EXPECT_FALSE(second.contains("top1"));
  std::getline(file, line);
  EXPECT_EQ(nlohmann::json::parse(line)["top5"], 0.75);
  EXPECT_FALSE(nlohmann::json::parse(line).contains("mean_iou"));
}

TEST(RunLog, ContinuingCutsBackToTheCheckpointAndDropsATornLine) {
  const TemporaryFolder folder;
  const auto path = folder / "log.jsonl";
  {
    RunLog log(path);
    for (const int64_t number : {1, 2, 3}) log.write(step(number));
    log.write(evaluation(3));
    for (const int64_t number : {4, 5}) log.write(step(number));
    log.write(evaluation(5));
  }
  std::ofstream(path, std::ios::app) << "not JSON\n{\"type\":\"step\",\"st";
  {
    RunLog log(path, 4);
    EXPECT_EQ(log.evaluated_step(), 3);
    log.write(step(5));
  }
  std::vector<int64_t> steps;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) steps.push_back(nlohmann::json::parse(line)["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 3, 4, 5}));
}

TEST(RunLog, ANewRunBeginsEmptyAndContinuingWithoutALogIsOne) {
  const TemporaryFolder folder;
  {
    RunLog(folder / "log.jsonl").write(step(1));
  }
  {
    RunLog log(folder / "log.jsonl");
  }
  EXPECT_EQ(std::filesystem::file_size(folder / "log.jsonl"), 0u);
  const RunLog other(folder / "other.jsonl", 7);
  EXPECT_EQ(other.evaluated_step(), -1);
  EXPECT_TRUE(std::filesystem::exists(folder / "other.jsonl"));
}

TEST(RunLog, AFileSizeLimitIsAnErrorThatNamesTheFile) {
  const TemporaryFolder folder;
  RunLog log(folder / "log.jsonl");
  log.write(step(1));
  const std::string before = io::read_file(folder / "log.jsonl");
  {
    const FileSizeLimit full(before.size() + 10);
    expect_error(ErrorKind::kOutput, {"log.jsonl", "File too large"}, [&] { log.write(step(2)); });
  }
  EXPECT_EQ(io::read_file(folder / "log.jsonl"), before);
  log.write(EndRecord{.reason = "the disk was full"});
  EXPECT_EQ(read_run_log(folder / "log.jsonl").end->reason, "the disk was full");
}

TEST(RunLog, AFolderThatCannotBeMadeIsAnErrorThatNamesTheFile) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "a regular file";
  expect_error(ErrorKind::kOutput, {"log.jsonl"}, [&] { RunLog log(folder / "file" / "log.jsonl"); });
}

TEST(RunLog, APathThatTheSystemRefusesIsAnErrorOfTheOutput) {
  const TemporaryFolder folder;
  for (const int64_t step : {-1, 3})
    expect_error(ErrorKind::kOutput, {"too long"}, [&] { RunLog(folder / std::string(300, 'n'), step); });
}

TEST(ReadLog, GivesTheRecordsThatWereWritten) {
  const TemporaryFolder folder;
  ExponentRecord exponents;
  exponents.step = 3;
  exponents.weights.add(at::tensor({0.0, 0.5, 0.75, 0x1p-30}, at::kFloat));
  exponents.recommended_scale = 16;
  {
    RunLog log(folder / "log.jsonl");
    StepRecord record{.step = 3, .epoch = 2, .loss = std::nan(""), .lr = 1e-3};
    record.peak_bytes = 123;
    log.write(record);
    log.write(exponents);
    log.write(evaluation(3));
    log.write(evaluation(4, /*segmentation=*/false));
  }
  const LogContents log = read_run_log(folder / "log.jsonl");
  EXPECT_EQ(log.damaged_lines, 0);
  ASSERT_EQ(log.steps.size(), 1u);
  EXPECT_EQ(log.steps[0].epoch, 2);
  EXPECT_TRUE(std::isnan(log.steps[0].loss));
  EXPECT_EQ(log.steps[0].lr, 1e-3);
  EXPECT_EQ(log.steps[0].peak_bytes, 123);
  ASSERT_EQ(log.evaluations.size(), 2u);
  EXPECT_TRUE(log.evaluations[0].segmentation);
  EXPECT_EQ(log.evaluations[0].metrics.class_iou[0], 0.25);
  EXPECT_TRUE(std::isnan(log.evaluations[0].metrics.class_iou[1]));
  EXPECT_FALSE(log.evaluations[1].segmentation);
  EXPECT_EQ(log.evaluations[1].metrics.top5, 0.75);
  ASSERT_TRUE(log.exponents);
  EXPECT_EQ(log.exponents->recommended_scale, 16);
  EXPECT_EQ(log.exponents->weights.text(), exponents.weights.text());
}

TEST(ReadLog, LeavesOutDamagedLinesUnknownTypesAndTheLineThatIsBeingWritten) {
  const TemporaryFolder folder;
  io::write_file_atomically(folder / "log.jsonl",
                            R"({"type": "step", "step": 1, "loss": "much", "epoch": {}})"
                            "\n{\"type\": \"st\n\xff\xff\n[1, 2]\n"
                            R"({"type": "weather", "step": 2})"
                            "\n"
                            R"({"type": "step", "step": 2, "loss": 0.5})"
                            "\n"
                            R"({"type": "step", "step": 3)");
  const LogContents log = read_run_log(folder / "log.jsonl");
  EXPECT_EQ(log.damaged_lines, 3);
  EXPECT_EQ(log.first_damaged_line, 2);
  ASSERT_EQ(log.steps.size(), 2u);
  EXPECT_TRUE(std::isnan(log.steps[0].loss));
  EXPECT_EQ(log.steps[0].epoch, 1);
  EXPECT_EQ(log.steps[1].loss, 0.5);
}

}  // namespace
}  // namespace palimpsest::train
