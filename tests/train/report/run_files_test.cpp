#include "palimpsest/train/report/run_files.h"

#include "palimpsest/train/report/details.h"
#include "tests/train/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

namespace palimpsest::train {
namespace {

using testing::TemporaryFolder;
using testing::tiny_options;
using testing::TinyRun;

std::set<std::string> event_files(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (const auto name = entry.path().filename().string(); name.starts_with("events.")) names.insert(name);
  return names;
}

TEST(RunFiles, ATrainingKeepsItsLastEvaluationAndTheMemoryOfItsSecondStep) {
  const TemporaryFolder folder;
  TinyRun run;
  TrainerOptions options = tiny_options(folder / "run");
  options.report.class_names = {"red", "green"};  // the third has no name
  const auto outcome = run.train(options);
  const EvaluationDetails details = read_evaluation(folder / "run" / kEvaluationFile);
  EXPECT_EQ(details.step, testing::kSteps);
  EXPECT_EQ(details.epoch, 2);
  EXPECT_EQ(details.class_names, (std::vector<std::string>{"red", "green", "class 2"}));
  EXPECT_EQ(details.pictures.size(), 4u);                         // of 4 images
  EXPECT_EQ(details.confusion.sum().item<int64_t>(), 4 * 5 * 6);  // a row of each image is void
  ASSERT_TRUE(outcome.details);
  EXPECT_TRUE(at::equal(outcome.details->confusion, details.confusion));
  EXPECT_TRUE(outcome.evaluations.back().confusion.empty());

  const StepTimeline timeline = read_step_memory(folder / "run" / kStepMemoryFile);
  EXPECT_EQ(timeline.step, 2);
  ASSERT_EQ(timeline.marks.size(), 3u);
  EXPECT_EQ(timeline.marks[0].name, "forward");
  EXPECT_EQ(timeline.marks[2].name, "step");
  int64_t highest = 0;
  for (const auto& sample : timeline.samples) highest = std::max(highest, sample.current_bytes);
  EXPECT_EQ(highest, outcome.steps[1].peak_bytes);
  EXPECT_TRUE(event_files(folder / "run").empty()) << "they are not wanted";
}

TEST(RunFiles, AnotherTimelineMakesTheRecordingImpossibleAndNothingElse) {
  const TemporaryFolder folder;
  TinyRun run;
  const memory::Timeline mine;
  run.train(tiny_options(folder / "run"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run" / kStepMemoryFile));
  EXPECT_TRUE(std::filesystem::exists(folder / "run" / kEvaluationFile));
}

TEST(RunFiles, AResumedRunBeginsAnEventFileAndANewRunRemovesThoseOfTheEarlierOne) {
  const TemporaryFolder folder;
  TrainerOptions options = tiny_options(folder / "run");
  options.tensorboard = true;
  options.max_steps = 5;
  TinyRun().train(options);
  const std::string first = "events.out.tfevents.0000000000.palimpsest";
  EXPECT_EQ(event_files(folder / "run"), (std::set<std::string>{first}));
  options.resume = true;
  options.max_steps = 7;
  TinyRun().train(options);
  EXPECT_EQ(event_files(folder / "run"),
            (std::set<std::string>{first, "events.out.tfevents.0000000006.palimpsest"}));
  options.resume = false;
  options.tensorboard = false;
  TinyRun().train(options);
  EXPECT_TRUE(event_files(folder / "run").empty());
}

TEST(RunFiles, ARunThatFailsBeforeItsFirstStepLeavesThoseOfTheEarlierOne) {
  const TemporaryFolder folder;
  TrainerOptions options = tiny_options(folder / "run");
  options.tensorboard = true;
  TinyRun().train(options);
  TinyRun failing;
  failing.at_step(1, [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("planted"); });
  EXPECT_ANY_THROW(failing.train(options));
  EXPECT_EQ(event_files(folder / "run").size(), 1u);
  EXPECT_EQ(read_evaluation(folder / "run" / kEvaluationFile).step, testing::kSteps);
  EXPECT_EQ(read_step_memory(folder / "run" / kStepMemoryFile).step, 2);
}

}  // namespace
}  // namespace palimpsest::train
