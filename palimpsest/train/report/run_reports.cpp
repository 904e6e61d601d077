#include "palimpsest/train/report/run_reports.h"

#include "palimpsest/io/atomic_file.h"
#include "palimpsest/train/report/exponent_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <utility>

namespace palimpsest::train {

RunReports::RunReports(const TrainerOptions& options, distributed::Group* group, int64_t last_step,
                       bool writes, TrainingOutcome& outcome)
    : options_(options), group_(group), last_step_(last_step), writes_(writes), outcome_(outcome) {}

void RunReports::begin_progress() {
  if (!options_.quiet && (!group_ || group_->rank() == 0))
    progress_.emplace(std::cerr, stderr_columns(), last_step_, options_.epochs);
}

int64_t RunReports::begin_files(int64_t steps_done) {
  if (!writes_) return -1;
  log_.emplace(options_.output / kLogFile, steps_done);
  if (!options_.resume) {
    std::error_code none;  // of an earlier run
    for (const char* file : {kBestFile, kExponentsFile})
      std::filesystem::remove(options_.output / file, none);
  }
  files_.emplace(options_.output, options_.tensorboard, steps_done);
  return log_->evaluated_step();
}

std::optional<EvaluationRecord> RunReports::last_evaluation() const {
  return log_ ? log_->last_evaluation() : std::nullopt;
}

void RunReports::note(const std::string& text) {
  if (progress_) progress_->note(text);
}

void RunReports::add(FinishedStep step) {
  StepRecord& record = step.record;
  interval_images_ += step.images;
  interval_seconds_ += step.seconds;
  run_seconds_ += step.seconds;
  record.images_per_second = static_cast<double>(interval_images_) / std::max(interval_seconds_, 1e-9);
  const auto steps = static_cast<double>(outcome_.steps.size() + 1);
  record.eta_seconds = run_seconds_ / steps * static_cast<double>(last_step_ - record.step);
  outcome_.steps.push_back(record);

  const bool logged = record.step == 1 || record.step % options_.log_every == 0 || record.step == last_step_;
  if (logged && log_) log_->write(record);
  if (files_) files_->write(record, logged);
  if (progress_) progress_->step(record, logged);
  if (step.observation) show(record.step, *step.observation);
  if (record.abn_fallbacks > 0 && !fallback_told_) tell_fallback(record.abn_fallbacks);
  tell_bad(step);
  if (logged) interval_images_ = 0, interval_seconds_ = 0;
}

void RunReports::show(int64_t step, const Step::Observation& seen) {
  const ExponentRecord record{step, seen.activations, seen.weights, seen.recommended_scale()};
  outcome_.exponents = record;
  if (log_) log_->write(record);
  if (files_) files_->write(record);
  if (writes_) io::write_file_atomically(options_.output / kExponentsFile, to_svg(record));
  if (!progress_) return;
  const auto tell = [&](const char* what, const amp::ExponentHistogram& h) {
    const std::string text = h.text();  // only its first line is shown: log and chart have the bars
    if (h.values() > 0)
      progress_->note(fmt::format("{} of step {}: {}", what, step, text.substr(0, text.find('\n'))));
  };
  tell("weights", seen.weights);
  tell("activations", seen.activations);
}

void RunReports::tell_bad(const FinishedStep& step) {
  for (const NewBadImage& bad : step.bad) {
    if (log_) log_->write(BadImageRecord{step.record.step, bad.reason});
    if (bad.is_named) note("another image takes the place of one that cannot be read: " + bad.reason);
  }
}

void RunReports::tell_fallback(int64_t count) {
  fallback_told_ = true;
  note(fmt::format(
      "{} layers saved one more tensor for backward in this step: a |weight| is too small to recover "
      "the normalized input from the output (log.jsonl counts them as abn_fallbacks)",
      count));
}

void RunReports::add(EvaluationRecord record, EvaluationDetails details) {
  outcome_.details = std::move(details);
  if (files_) files_->write(record, *outcome_.details);
  if (log_) log_->write(record);
  if (progress_) progress_->evaluation(record);
  outcome_.evaluations.push_back(std::move(record));
}

void RunReports::add(const StepTimeline& timeline) {
  if (files_) files_->write(timeline);
}

void RunReports::add(const EndRecord& record) {
  if (log_) log_->write(record);
}

}  // namespace palimpsest::train
