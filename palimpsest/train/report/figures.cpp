#include "palimpsest/train/report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace palimpsest::train {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

double ReportRun::loss() const {
  if (steps.empty()) return kNaN;
  const size_t count = std::min<size_t>(steps.size(), kLossSteps);
  double sum = 0;
  for (size_t i = steps.size() - count; i < steps.size(); ++i) sum += steps[i].loss;
  return sum / static_cast<double>(count);
}

double ReportRun::score() const {
  return evaluations.empty() ? kNaN : score_of(evaluations.back());
}

double ReportRun::settled_score() const {
  if (evaluations.size() < kSettledEvaluations) return kNaN;
  double sum = 0;
  for (size_t i = evaluations.size() - kSettledEvaluations; i < evaluations.size(); ++i)
    sum += score_of(evaluations[i]);
  return sum / kSettledEvaluations;
}

bool is_segmentation(const Report& report) {
  for (const auto& run : report.runs)
    if (!run.evaluations.empty()) return run.evaluations.back().segmentation;
  return true;
}

double score_of(const EvaluationRecord& e) {
  return e.segmentation ? e.metrics.mean_iou : e.metrics.top1;
}

std::vector<FigureRow> figure_rows(const Report& report) {
  std::vector<FigureRow> result;
  const auto add = [&](std::string label, int decimals, auto value) {
    FigureRow row{std::move(label), {}, decimals};
    for (const auto& run : report.runs) row.values.push_back(value(run));
    result.push_back(std::move(row));
  };
  const auto known = [](auto value) { return value > 0 ? static_cast<double>(value) : kNaN; };
  add("kept MiB", 1, [&](const ReportRun& r) { return known(r.kept_bytes) / kMiB; });
  add("peak MiB", 1, [&](const ReportRun& r) { return known(r.peak_bytes) / kMiB; });
  add("seconds per step", 3, [&](const ReportRun& r) { return known(r.seconds_per_step); });
  if (std::all_of(report.runs.begin(), report.runs.end(),
                  [](const ReportRun& r) { return r.training_seconds > 0; }))
    add("minutes of training", 1, [](const ReportRun& r) { return r.training_seconds / 60; });
  add("loss", 4, [](const ReportRun& r) { return r.loss(); });
  const auto add_score = [&](bool segmentation) {
    add(segmentation ? "mean IoU, %" : "top-1 accuracy, %", 1, [=](const ReportRun& r) {
      return r.evaluations.empty() || r.evaluations.back().segmentation == segmentation ? 100 * r.score()
                                                                                        : kNaN;
    });
  };
  add_score(is_segmentation(report));
  const auto has_other_task = [&](const ReportRun& r) {
    return !r.evaluations.empty() && r.evaluations.back().segmentation != is_segmentation(report);
  };
  const bool mixed = std::ranges::any_of(report.runs, has_other_task);
  if (mixed) add_score(!is_segmentation(report));
  if (!mixed && std::all_of(report.runs.begin(), report.runs.end(),
                            [](const ReportRun& r) { return std::isfinite(r.settled_score()); }))
    add("  of the last 3 evaluations", 1, [](const ReportRun& r) { return 100 * r.settled_score(); });
  if (report.memory_bytes > 0)
    add(fmt::format("largest batch in {:.0f} MiB", static_cast<double>(report.memory_bytes) / kMiB), 0,
        [](const ReportRun& r) { return static_cast<double>(r.largest_batch); });
  return result;
}

std::string number_text(double value, int decimals) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, decimals) : "-";
}

std::vector<std::string> figure_cells(const FigureRow& row) {
  std::vector<std::string> result;
  for (size_t i = 0; i < row.values.size(); ++i) {
    result.push_back(number_text(row.values[i], row.decimals));
    if (i > 0) result.push_back(number_text(row.values[i] / row.values[0], 3));
  }
  return result;
}

std::vector<std::string> figure_columns(const Report& report) {
  std::vector<std::string> names;
  for (const auto& run : report.runs) {
    names.push_back(run.name);
    if (names.size() > 1) names.push_back("ratio");
  }
  return names;
}

}  // namespace palimpsest::train
