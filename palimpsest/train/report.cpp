#include "palimpsest/train/report.h"

#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/svg.h"
#include "palimpsest/train/report/classes.h"
#include "palimpsest/train/report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace palimpsest::train {
namespace {

using Json = nlohmann::ordered_json;  // NaN becomes null

}  // namespace

std::string to_table(const Report& report) {
  const auto names = figure_columns(report);
  size_t label_width = 0, width = 9;
  for (const auto& row : figure_rows(report)) label_width = std::max(label_width, row.label.size());
  for (const auto& name : names) width = std::max(width, name.size());
  std::string text(label_width, ' ');
  for (const auto& name : names) text += fmt::format("  {:>{}}", name, width);
  text += fmt::format("\n{:->{}}\n", "", label_width + names.size() * (width + 2));
  for (const auto& row : figure_rows(report)) {
    text += fmt::format("{:<{}}", row.label, label_width);
    for (const auto& cell : figure_cells(row)) text += fmt::format("  {:>{}}", cell, width);
    text += '\n';
  }
  return text;
}

std::string memory_svg(const Report& report) {
  io::LineChart chart{.title = "Live memory during one training step",
                      .x_label = "seconds since the forward pass began",
                      .y_label = "live tensors, MiB",
                      .width = kChartWidth,
                      .height = kChartHeight};
  for (size_t i = 0; i < report.runs.size(); ++i) {
    const ReportRun& run = report.runs[i];
    const std::string peak = fmt::format(", peak {:.0f} MiB", static_cast<double>(run.peak_bytes) / kMiB);
    io::LineChart::Series series{run.timeline.empty() ? "" : run.name + peak, {}, {}, true};
    for (const auto& sample : run.timeline) {
      series.x.push_back(sample.seconds);
      series.y.push_back(static_cast<double>(sample.current_bytes) / kMiB);
    }
    chart.series.push_back(std::move(series));
    // The first phase begins with the axis and needs no mark.
    for (size_t k = 1; k < run.marks.size(); ++k)
      chart.marks.push_back({run.marks[k].seconds, run.marks[k].name, static_cast<int>(i)});
  }
  return io::to_svg(chart);
}

std::string loss_svg(const Report& report) {
  io::LineChart chart{.title = "Training loss",
                      .x_label = "step",
                      .y_label = "loss",
                      .width = kChartWidth,
                      .height = kChartHeight};
  for (const auto& run : report.runs) {
    io::LineChart::Series series{run.name, {}, {}};
    for (const auto& step : run.steps) {
      series.x.push_back(static_cast<double>(step.step));
      series.y.push_back(step.loss);
    }
    chart.series.push_back(std::move(series));
  }
  return io::to_svg(chart);
}

std::string to_json(const Report& report) {
  Json json{{"title", report.title}, {"setup", Json::object()}, {"memory_bytes", report.memory_bytes}};
  for (const auto& [name, value] : report.setup) json["setup"][name] = value;
  json["class_names"] = report.runs.empty() ? std::vector<std::string>() : class_names_of(report.runs[0]);
  Json runs = Json::array();
  const char* score_name = is_segmentation(report) ? "mean_iou" : "top1";
  for (const auto& run : report.runs) {
    Json r{{"name", run.name},
           {"kept_bytes", run.kept_bytes},
           {"peak_bytes", run.peak_bytes},
           {"seconds_per_step", run.seconds_per_step},
           {"training_seconds", run.training_seconds},
           {"loss", run.loss()},
           {score_name, run.score()},
           {std::string(score_name) + "_of_last_3", run.settled_score()},
           {"largest_batch", run.largest_batch}};
    // Built separately: a new member of an ordered object moves the earlier members, and references dangle.
    Json losses = Json::array(), evaluations = Json::array();
    for (const auto& step : run.steps) losses.push_back(step.loss);
    for (const auto& e : run.evaluations)
      evaluations.push_back(
          {{"step", e.step}, {"epoch", e.epoch}, {"loss", e.loss}, {score_name, score_of(e)}});
    r["losses"] = std::move(losses);
    r["evaluations"] = std::move(evaluations);
    if (!run.evaluations.empty() && run.evaluations.back().segmentation)
      r["class_iou"] = run.evaluations.back().metrics.class_iou;
    runs.push_back(std::move(r));
  }
  json["runs"] = std::move(runs);
  Json ratios = Json::object();
  for (const auto& row : figure_rows(report)) {
    Json of_row = Json::array();
    for (double value : row.values) of_row.push_back(value / row.values[0]);
    ratios[row.label] = std::move(of_row);
  }
  json["ratios_to_first"] = std::move(ratios);
  return json.dump(2) + "\n";
}

void write_report(const std::filesystem::path& folder, const Report& report) {
  io::write_file_atomically(folder / "memory.svg", memory_svg(report));
  io::write_file_atomically(folder / "loss.svg", loss_svg(report));
  io::write_file_atomically(folder / "results.json", to_json(report));
  io::write_file_atomically(folder / "index.html", to_html(report));
}

}  // namespace palimpsest::train
