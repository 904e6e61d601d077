// Trainings whose numbers are read one step late, as on a GPU. What happens is that of a training that reads
// at once; the calls for which a host would wait for a GPU are counted on the CPU.
#include "tests/train/run.h"
#include "tests/train/support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::train {
namespace {

using namespace testing;

struct Kind {
  const char* name;
  std::function<void(TrainerOptions&)> set;
  int64_t most_waits;  ///< per step
};

/// f16 decides once per step whether it is skipped.
std::vector<Kind> kinds() {
  return {{"f32", [](TrainerOptions&) {}, 0},
          {"clipped", [](TrainerOptions& o) { o.optimizer.clip_norm = 0.5; }, 0},
          {"average", [](TrainerOptions& o) { o.ema_decay = 0.9; }, 0},
          {"smoothed", [](TrainerOptions& o) { o.loss.label_smoothing = 0.1; }, 0},
          {"in parts", [](TrainerOptions& o) { o.accumulate = 3; }, 0},
          {"bootstrap in parts",
           [](TrainerOptions& o) {
             o.accumulate = 2;
             o.loss.kind = "bootstrap";
           },
           0},
          {"adamw", [](TrainerOptions& o) { o.optimizer = {.kind = "adamw", .lr = 0.01}; }, 0},
          {"bf16", [](TrainerOptions& o) { o.precision = "bf16"; }, 0},
          {"f16, clipped",
           [](TrainerOptions& o) {
             o.precision = "f16";
             o.optimizer.clip_norm = 0.5;
           },
           1}};
}

TrainerOptions options_of(const Kind& kind, const std::filesystem::path& output, bool late) {
  TrainerOptions options = tiny_options(output);
  kind.set(options);
  options.reads_late = late;
  return options;
}

/// Returns the waits from the forward pass of each training step to that of the next one. A step in parts has
/// several passes; the first one counts.
std::vector<int64_t> waits_per_step(TrainerOptions options) {
  options.output.clear();  // checkpoints and evaluations read the state
  options.evaluate_every = 0;
  options.epochs = 1;
  TinyRun run;
  std::vector<int64_t> seen;
  const OperatorCalls calls;
  run.model->images_hook = [&](TinySegmenter& model, const at::Tensor& images) {
    if ((model.training_steps - 1) % options.accumulate == 0) seen.push_back(calls.waits());
    return images;
  };
  run.train(options);
  std::vector<int64_t> waits;
  for (std::size_t i = 1; i < seen.size(); ++i) waits.push_back(seen[i] - seen[i - 1]);
  return waits;
}

TEST(TrainerLate, HasTheBytesAndTheLogOfARunThatReadsAtOnce) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const TemporaryFolder at_once, late;
    const auto want = TinyRun().train(options_of(kind, at_once.path(), false));
    const auto got = TinyRun().train(options_of(kind, late.path(), true));
    EXPECT_EQ(checkpoint_bytes(late.path()), checkpoint_bytes(at_once.path()));
    EXPECT_EQ(reproducible_log(late.path()), reproducible_log(at_once.path()));
    ASSERT_EQ(got.steps.size(), want.steps.size());
    for (std::size_t i = 0; i < want.steps.size(); ++i) {
      EXPECT_EQ(got.steps[i].step, static_cast<int64_t>(i + 1));
      EXPECT_EQ(got.steps[i].loss, want.steps[i].loss) << "step " << i + 1;
      EXPECT_EQ(got.steps[i].gradient_norm, want.steps[i].gradient_norm) << "step " << i + 1;
    }
  }
}

TEST(TrainerLate, WaitsAtMostOncePerStep) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const auto late = waits_per_step(options_of(kind, {}, true));
    ASSERT_EQ(late.size(), static_cast<std::size_t>(kBatches - 1));
    for (const int64_t waits : late) EXPECT_LE(waits, kind.most_waits);
    for (const int64_t waits : waits_per_step(options_of(kind, {}, false)))
      EXPECT_GT(waits, kind.most_waits) << "a run that reads at once shows that the counter counts";
  }
}

/// Returns the message of a run that fails, and what is left of it: steps in the log, and the step of the
/// checkpoint.
std::string failure_of(bool late, ErrorKind kind, const std::function<void(TinyRun&)>& prepare,
                       const std::filesystem::path& output) {
  TinyRun run;
  prepare(run);
  TrainerOptions options = tiny_options(output);
  options.log_every = 1;
  options.reads_late = late;
  try {
    run.train(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    std::string text = error.what();
    if (const auto at = text.find(output.string()); at != std::string::npos)
      text.replace(at, output.string().size(), "OUTPUT");
    return text;
  }
  ADD_FAILURE() << "the run must fail";
  return "";
}

int64_t logged_steps(const std::filesystem::path& output) {
  int64_t steps = 0;
  for (const auto& line : read_log(output))
    if (line["type"] == "step") steps = line["step"].get<int64_t>();
  return steps;
}

TEST(TrainerLate, ALossThatIsNotFiniteBelongsToItsStepAndIsNeverSaved) {
  const auto poison = [](double value) {
    return [value](const at::Tensor& logits) { return logits * value; };
  };
  // In the middle of an epoch, in the last step before a checkpoint, and in the last step of the run.
  for (const int64_t step : {int64_t{3}, kBatches, kSteps})
    for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      const TemporaryFolder at_once, late;
      const auto prepare = [&](TinyRun& run) { run.at_step(step, poison(value)); };
      const std::string want = failure_of(false, ErrorKind::kDiverged, prepare, at_once.path());
      EXPECT_EQ(failure_of(true, ErrorKind::kDiverged, prepare, late.path()), want);
      EXPECT_NE(want.find("in step " + std::to_string(step)), std::string::npos) << want;
      EXPECT_EQ(logged_steps(late.path()), step - 1);
      EXPECT_EQ(checkpoint_bytes(late.path()), checkpoint_bytes(at_once.path()));
    }
}

TEST(TrainerLate, AFailureOfTheNextStepLeavesTheStepBeforeInTheLog) {
  for (const bool late : {false, true}) {
    const TemporaryFolder output;
    const auto prepare = [](TinyRun& run) {
      run.at_step(4,
                  [](const at::Tensor&) -> at::Tensor { throw Error(ErrorKind::kData, "a broken image"); });
    };
    EXPECT_EQ(failure_of(late, ErrorKind::kData, prepare, output.path()), "a broken image");
    EXPECT_EQ(logged_steps(output.path()), 3);
  }
  // The step before had diverged: that is the reason to tell.
  const TemporaryFolder output;
  const std::string text = failure_of(
      true, ErrorKind::kDiverged,
      [](TinyRun& run) {
        run.model->hook = [](TinySegmenter& m, const at::Tensor& t) -> at::Tensor {
          if (m.training_steps == 4) throw Error(ErrorKind::kData, "a broken image");
          return m.training_steps == 3 ? t * std::nan("") : t;
        };
      },
      output.path());
  EXPECT_NE(text.find("NaN in step 3"), std::string::npos) << text;
}

TEST(TrainerLate, AStoppedAndResumedRunHasTheBytesOfAnUnbrokenOne) {
  const TemporaryFolder unbroken, stopped;
  TinyRun().train(tiny_options(unbroken.path()));
  TrainerOptions options = tiny_options(stopped.path());
  options.reads_late = true;
  {
    TinyRun run;
    run.at_step(3, [&](const at::Tensor& logits) {
      run.stop = SIGTERM;
      return logits;
    });
    const auto outcome = run.train(options);
    EXPECT_EQ(outcome.signal, SIGTERM);
    EXPECT_EQ(outcome.last_step, 3);
    EXPECT_EQ(outcome.steps.size(), 3u);
  }
  options.resume = true;
  TinyRun().train(options);
  EXPECT_EQ(checkpoint_bytes(stopped.path()), checkpoint_bytes(unbroken.path()));
}

TEST(TrainerLate, HistogramsBelongToTheirSteps) {
  const TemporaryFolder at_once, late;
  for (const auto* folder : {&at_once, &late}) {
    TrainerOptions options = tiny_options(folder->path());
    options.histogram_every = 2;
    options.reads_late = folder == &late;
    TinyRun().train(options);
  }
  EXPECT_EQ(reproducible_log(late.path()), reproducible_log(at_once.path()));
}

}  // namespace
}  // namespace palimpsest::train
