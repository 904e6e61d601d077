#include "palimpsest/io/svg.h"
#include "palimpsest/train/report/classes.h"
#include "palimpsest/train/report/exponent_chart.h"
#include "palimpsest/train/report/figures.h"
#include "palimpsest/train/report/html.h"
#include "palimpsest/train/report/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <utility>

namespace palimpsest::train {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// Returns the headline in words: how each run compares with the first.
std::string summary_html(const Report& report) {
  std::string html;
  if (report.memory_bytes == 0) return html;  // the runs need not be of one network
  for (size_t i = 1; i < report.runs.size(); ++i) {
    const ReportRun &base = report.runs[0], &run = report.runs[i];
    html += fmt::format(
        "<p class=\"summary\"><b>{}</b> saves <b>{:.0f} %</b> of the bytes that <b>{}</b> saves for "
        "backward, and peaks at <b>{:.0f} %</b> of its memory",
        io::escape_xml(run.name), 100.0 * static_cast<double>(run.kept_bytes) / base.kept_bytes,
        io::escape_xml(base.name), 100.0 * static_cast<double>(run.peak_bytes) / base.peak_bytes);
    if (run.largest_batch > 0 && base.largest_batch > 0)
      html += fmt::format("; in the same memory it fits a batch of <b>{}</b> instead of {}",
                          run.largest_batch, base.largest_batch);
    html += ".</p>\n";
  }
  return html;
}

/// Returns the runs with their colours and what there is to say about each.
std::string runs_html(const Report& report) {
  std::string html;
  for (size_t i = 0; i < report.runs.size(); ++i) {
    const ReportRun& run = report.runs[i];
    html += "<li>" + html_swatch(i) + "<b>" + io::escape_xml(run.name) + "</b>";
    for (const std::string& note : run.notes)
      html += "<br><span class=\"note\">" + io::escape_xml(note) + "</span>";
    html += "</li>\n";
  }
  return html.empty() ? "<p>No run.</p>\n" : "<ul>\n" + html + "</ul>\n";
}

std::string figures_html(const Report& report) {
  std::string html = "<table class=\"figures\"><thead><tr><td></td>";
  for (const auto& name : figure_columns(report))
    html += "<th scope=\"col\">" + io::escape_xml(name) + "</th>";
  html += "</tr></thead><tbody>\n";
  for (const auto& row : figure_rows(report)) {
    html += "<tr><th scope=\"row\">" + io::escape_xml(row.label) + "</th>";
    const auto values = figure_cells(row);
    for (size_t i = 0; i < values.size(); ++i)
      html += fmt::format("<td{}>{}</td>", i > 0 && i % 2 == 0 ? " class=\"ratio\"" : "", values[i]);
    html += "</tr>\n";
  }
  html = html_scroll_box("figures", html + "</tbody></table>\n");
  html += fmt::format(
      "<p class=\"note\">kept: bytes saved for the backward pass. peak: highest live bytes of a step, "
      "parameters, "
      "gradients, momentum and batch included. MiB = 2<sup>20</sup> bytes, counted by the allocator of the "
      "device. {}loss: mean of the last {} training steps{}. A dash: not known.",
      report.time_note.empty() ? "" : "seconds per step: " + io::escape_xml(report.time_note) + ". ",
      kLossSteps, report.memory_bytes == 0 ? " of the log" : "");
  if (report.runs.size() > 1) html += " ratio: to " + io::escape_xml(report.runs[0].name) + ".";
  return html + "</p>\n";
}

/// Returns the chart of one value per logged step; "" if no run has the value.
std::string steps_svg(const Report& report, const char* title, const char* y_label,
                      const std::function<double(const StepRecord&)>& value) {
  io::LineChart chart{
      .title = title, .x_label = "step", .y_label = y_label, .width = kChartWidth, .height = kChartHeight};
  bool any = false;
  for (const auto& run : report.runs) {
    io::LineChart::Series series{run.name, {}, {}};
    for (const auto& step : run.steps) {
      series.x.push_back(static_cast<double>(step.step));
      series.y.push_back(value(step));
      any = any || series.y.back() > 0;
    }
    chart.series.push_back(std::move(series));
  }
  return any ? io::to_svg(chart) : "";
}

/// Returns the chart of the score of the runs with this task; "" if there is none.
std::string score_svg(const Report& report, bool segmentation) {
  io::LineChart chart{
      .title = segmentation ? "Mean IoU on the validation images" : "Top-1 accuracy on the validation images",
      .x_label = "epoch",
      .y_label = segmentation ? "mean IoU, %" : "top-1, %",
      .width = kChartWidth,
      .height = kChartHeight};
  bool any = false;
  for (const auto& run : report.runs) {
    // A run of the other task has no curve and no name, but its colour.
    io::LineChart::Series series{"", {}, {}};
    for (const auto& e : run.evaluations) {
      if (e.segmentation != segmentation) continue;
      series.name = run.name;
      series.x.push_back(static_cast<double>(e.epoch));
      series.y.push_back(100 * score_of(e));
      any = true;
    }
    chart.series.push_back(std::move(series));
  }
  return any ? io::to_svg(chart) : "";
}

std::string curves_html(const Report& report) {
  if (std::ranges::all_of(report.runs, [](const ReportRun& run) { return run.steps.empty(); }))
    return "<p class=\"note\">No step is logged.</p>\n";
  std::string evaluated = score_svg(report, true) + score_svg(report, false);
  std::string html = html_charts(
      {loss_svg(report), score_svg(report, true), score_svg(report, false),
       steps_svg(report, "Learning rate", "learning rate", [](const StepRecord& r) { return r.lr; }),
       steps_svg(report, "Throughput", "images per second",
                 [](const StepRecord& r) { return r.images_per_second; }),
       steps_svg(report, "Peak memory of each step", "peak, MiB",
                 [](const StepRecord& r) { return static_cast<double>(r.peak_bytes) / kMiB; })});
  if (evaluated.empty()) html += "<p class=\"note\">There is no evaluation.</p>\n";
  return html;
}

std::string memory_html(const Report& report) {
  if (std::ranges::all_of(report.runs, [](const ReportRun& run) { return run.timeline.empty(); })) return "";
  return "<div class=\"charts\">\n<div>" + memory_svg(report) + "</div>\n</div>\n";
}

std::string exponents_html(const Report& report) {
  std::string html;
  for (const auto& run : report.runs)
    if (run.exponents)
      html += fmt::format("<div><p>{}, step {}</p>\n{}</div>\n", io::escape_xml(run.name),
                          run.exponents->step, to_svg(*run.exponents));
  return html.empty() ? html : "<div class=\"charts\">\n" + html + "</div>\n";
}

/// Returns the settings of one run, or of all where they are the same.
std::string settings_table(const Settings& settings) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, value] : settings) rows.push_back({name, value});
  return html_scroll_box("settings", html_table("settings", {"setting", "value"}, rows));
}

/// Returns the settings of several runs: first those that differ, then the others.
std::string settings_html(const Report& report) {
  std::vector<std::string> names;  // in the order of the first run that has them
  std::vector<std::map<std::string, std::string>> values(report.runs.size());
  for (size_t i = 0; i < report.runs.size(); ++i)
    for (const auto& [name, value] : report.runs[i].settings) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
      values[i][name] = value;
    }
  if (names.empty()) return "";
  if (report.runs.size() == 1) return settings_table(report.runs[0].settings);

  std::vector<std::string> head{"setting"};
  for (const auto& run : report.runs) head.push_back(run.name);
  std::vector<std::vector<std::string>> different;
  Settings same;
  for (const std::string& name : names) {
    std::vector<std::string> row{name};
    for (const auto& of_run : values) row.push_back(of_run.contains(name) ? of_run.at(name) : "-");
    if (std::all_of(row.begin() + 1, row.end(), [&](const std::string& value) { return value == row[1]; }))
      same.emplace_back(name, row[1]);
    else
      different.push_back(std::move(row));
  }
  std::string html = different.empty() ? "<p>All settings are the same.</p>\n"
                                       : "<h3>Settings that differ</h3>\n" +
                                             html_scroll_box("settings that differ",
                                                             html_table("settings", head, different));
  if (same.empty()) return html;
  return html + fmt::format("<details><summary>{} settings that all runs share</summary>\n{}</details>\n",
                            same.size(), settings_table(same));
}

}  // namespace

std::string to_html(const Report& report) {
  std::string html = summary_html(report) + runs_html(report) + figures_html(report);
  html += html_section("Memory over one step", memory_html(report));
  html += html_section("Training", curves_html(report));
  html += html_section("Classes", class_iou_html(report));
  html += html_section("Confusion", confusion_html(report));
  html += html_section("Pictures", pictures_html(report));
  html += html_section("Gradients by exponent", exponents_html(report));
  html += html_section("Setup", report.setup.empty() ? "" : settings_table(report.setup));
  html += html_section("Settings", settings_html(report));
  return html_page(report.title, html);
}

}  // namespace palimpsest::train
