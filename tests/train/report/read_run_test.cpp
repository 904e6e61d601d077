#include "palimpsest/io/atomic_file.h"
#include "palimpsest/train/report.h"
#include "palimpsest/train/report/details.h"
#include "tests/train/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

namespace palimpsest::train {
namespace {

using testing::TemporaryFolder;
using testing::tiny_options;
using testing::TinyRun;

bool notes_say(const ReportRun& run, const std::string& text) {
  return std::ranges::any_of(run.notes,
                             [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

TEST(ReadRun, ARunIsReadFromItsFiles) {
  const TemporaryFolder folder;
  const auto outcome = TinyRun().train(tiny_options(folder / "run"));
  EXPECT_FALSE(is_run_folder(folder / "none"));
  ASSERT_TRUE(is_run_folder(folder / "run"));
  const ReportRun run = read_run(folder / "run", "mine");
  EXPECT_EQ(run.name, "mine");
  EXPECT_EQ(run.steps.size(), 6u);  // 1, and every second one
  EXPECT_EQ(run.steps.back().loss, outcome.steps.back().loss);
  EXPECT_EQ(run.evaluations.size(), 2u);
  EXPECT_EQ(run.peak_bytes, std::ranges::max(run.steps, {}, &StepRecord::peak_bytes).peak_bytes);
  EXPECT_GT(run.seconds_per_step, 0);
  EXPECT_FALSE(run.timeline.empty());
  EXPECT_TRUE(run.details);
  EXPECT_EQ(run.notes, (std::vector<std::string>{"Complete: 10 steps, the last one in epoch 2."}));
}

TEST(ReadRun, WhatIsMissingOrDamagedIsSaidAndTheRestIsRead) {
  const TemporaryFolder folder;
  TinyRun().train(tiny_options(folder / "run"));
  std::filesystem::remove(folder / "run" / kStepMemoryFile);  // as in a run of an older program
  io::write_file_atomically(folder / "run" / kEvaluationFile, "damaged");
  const std::string log = io::read_file(folder / "run" / "log.jsonl");
  io::write_file_atomically(
      folder / "run" / "log.jsonl",
      "no json\n" + log + R"({"type": "evaluation", "step": 10, "bad_images": 2})" + "\n");
  const ReportRun run = read_run(folder / "run", "run");
  EXPECT_TRUE(notes_say(run, "no step_memory.safetensors"));
  EXPECT_TRUE(notes_say(run, "evaluation.safetensors was left out: "));
  EXPECT_TRUE(notes_say(run, "1 damaged line, which is left out; the first is line 1"));
  EXPECT_TRUE(notes_say(run, "left out 2 images that could not be read"));
  EXPECT_EQ(run.steps.size(), 6u);
  EXPECT_NE(to_html({.title = "t", .setup = {}, .runs = {run}, .time_note = {}}).find("</html>"),
            std::string::npos);
}

TEST(ReadRun, ARunThatWasStoppedIsUnfinished) {
  const TemporaryFolder folder;
  TinyRun run;
  run.at_step(4, [&](const at::Tensor& logits) {
    run.stop = 2;
    return logits;
  });
  run.train(tiny_options(folder / "run"));
  const ReportRun read = read_run(folder / "run", "run");
  EXPECT_TRUE(notes_say(read, "Unfinished: 4 steps are done, in epoch 1; about 0:00:0"));
  EXPECT_TRUE(notes_say(read, "No evaluation is logged."));
}

TEST(ReadRun, ARunWithoutASingleStepIsAPage) {
  const TemporaryFolder folder;
  io::write_file_atomically(folder / "run" / "config.toml", "");
  ASSERT_TRUE(is_run_folder(folder / "run"));
  const ReportRun run = read_run(folder / "run", "run");
  EXPECT_TRUE(notes_say(run, "No step is logged yet."));
  EXPECT_NE(to_html({.title = "t", .setup = {}, .runs = {run}, .time_note = {}}).find("No step is logged."),
            std::string::npos);
}

}  // namespace
}  // namespace palimpsest::train
