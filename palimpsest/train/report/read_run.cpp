#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/io/event_file.h"
#include "palimpsest/train/best.h"
#include "palimpsest/train/checkpoint.h"
#include "palimpsest/train/report.h"
#include "palimpsest/train/report/details.h"
#include "palimpsest/train/report/progress.h"
#include "palimpsest/train/report/run_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <system_error>

namespace palimpsest::train {
namespace {

bool holds(const std::filesystem::path& folder, const char* file) {
  std::error_code ignored;
  return std::filesystem::exists(folder / file, ignored);
}

/// Returns the median time of the logged steps. The first step is left out where there are more: it is slow.
double median_seconds(const std::vector<StepRecord>& steps) {
  std::vector<double> seconds;
  for (size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i)
    if (std::isfinite(steps[i].seconds)) seconds.push_back(steps[i].seconds);
  if (seconds.empty()) return 0;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

void add_progress_note(ReportRun& run, const std::optional<EndRecord>& end) {
  if (run.steps.empty()) {
    run.notes.emplace_back("No step is logged yet.");
    return;
  }
  const StepRecord& last = run.steps.back();
  if (end)
    run.notes.push_back(
        fmt::format("Ended early: {} steps, in epoch {}; {}.", end->step, end->epoch, end->reason));
  else if (last.eta_seconds > 0)
    run.notes.push_back(
        fmt::format("Unfinished: {} steps are done, in epoch {}; about {} of training are left.", last.step,
                    last.epoch, duration_text(last.eta_seconds)));
  else
    run.notes.push_back(fmt::format("Complete: {} steps, the last one in epoch {}.", last.step, last.epoch));
  if (!std::isfinite(last.loss)) run.notes.emplace_back("The last loss in the log is not finite.");
}

/// Calls `read`, and makes a note if the file is missing or damaged.
template <class Read>
void read_part(ReportRun& run, const std::filesystem::path& folder, const char* file, const char* lacks,
               const Read& read) {
  if (!holds(folder, file)) {
    run.notes.push_back(fmt::format("The run has no {} (it is written by newer programs): {}.", file, lacks));
    return;
  }
  try {
    read(folder / file);
  } catch (const Error& error) {
    run.notes.push_back(fmt::format("{} was left out: {}.", file, error.what()));
  }
}

/// Returns the record of the end, if the log has one.
std::optional<EndRecord> read_log_into(ReportRun& run, const std::filesystem::path& path) {
  LogContents log = read_run_log(path);
  run.steps = std::move(log.steps);
  run.evaluations = std::move(log.evaluations);
  run.exponents = log.exponents;
  if (log.damaged_lines > 0)
    run.notes.push_back(fmt::format("{} has {} damaged line{}, which {} left out; the first is line {}.",
                                    kLogFile, log.damaged_lines, log.damaged_lines == 1 ? "" : "s",
                                    log.damaged_lines == 1 ? "is" : "are", log.first_damaged_line));
  for (const StepRecord& step : run.steps) {
    run.kept_bytes = std::max(run.kept_bytes, step.kept_bytes);
    run.peak_bytes = std::max(run.peak_bytes, step.peak_bytes);
  }
  run.seconds_per_step = median_seconds(run.steps);
  return log.end;
}

}  // namespace

bool is_run_folder(const std::filesystem::path& folder) {
  return holds(folder, kLogFile) || holds(folder, kCheckpointFile) || holds(folder, kConfigFile);
}

bool is_file_of_run(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  if (!is_run_folder(file.has_parent_path() ? file.parent_path() : ".")) return false;
  for (const char* written :
       {kCheckpointFile, kBestFile, kLogFile, kConfigFile, kEvaluationFile, kStepMemoryFile})
    if (name == written) return true;
  return io::is_event_file(name);
}

ReportRun read_run(const std::filesystem::path& folder, const std::string& name) {
  ReportRun run;
  run.name = name;
  std::optional<EndRecord> end;
  if (holds(folder, kLogFile)) end = read_log_into(run, folder / kLogFile);
  add_progress_note(run, end);
  if (run.steps.size() > 1)
    read_part(run, folder, kStepMemoryFile, "the memory over one step is not known", [&](const auto& path) {
      StepTimeline timeline = read_step_memory(path);
      run.timeline = std::move(timeline.samples);
      run.marks = std::move(timeline.marks);
    });
  if (run.evaluations.empty()) {
    run.notes.emplace_back("No evaluation is logged.");
    return run;
  }
  if (const int64_t bad = run.evaluations.back().bad_images; bad > 0)
    run.notes.push_back(
        fmt::format("The last evaluation left out {} that could not be read.", counted(bad, "image")));
  read_part(run, folder, kEvaluationFile, "confusion and pictures are not known",
            [&](const auto& path) { run.details = read_evaluation(path); });
  if (const int64_t step = run.evaluations.back().step; run.details && run.details->step != step)
    run.notes.push_back(
        fmt::format("Confusion and pictures are of the evaluation after step {}, not of the last one "
                    "after step {}.",
                    run.details->step, step));
  return run;
}

}  // namespace palimpsest::train
