#include "palimpsest/train/report/classes.h"

#include "palimpsest/io/svg.h"
#include "palimpsest/train/report/figures.h"
#include "palimpsest/train/report/html.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace palimpsest::train {
namespace {

constexpr size_t kMostClassesOfATable = 30, kMostClassesOfAMap = 256, kConfusions = 15, kTallTable = 30;

/// Returns the IoU per class of the last evaluation; empty if there is none.
const std::vector<double>& class_iou_of(const ReportRun& run) {
  static const std::vector<double> kNone;
  return run.evaluations.empty() ? kNone : run.evaluations.back().metrics.class_iou;
}

std::string color_of(const EvaluationDetails& details, size_t c) {
  const at::Tensor colors = details.class_colors.to(at::kInt).contiguous();
  if (static_cast<int64_t>(c) >= colors.size(0)) return "";
  return html_swatch(colors.const_data_ptr<int>() + 3 * c);
}

std::string iou_cell(const ReportRun& run, size_t number, size_t c) {
  const auto& iou = class_iou_of(run);
  const double percent = c < iou.size() ? 100 * iou[c] : std::numeric_limits<double>::quiet_NaN();
  const double width = std::isfinite(percent) ? std::clamp(percent, 0.0, 100.0) : 0;
  return fmt::format(
      "<td><span class=\"bar\"><i "
      "style=\"width:{:.1f}%;background:var(--series{})\"></i></span><b>{}</b></td>",
      width, number % io::kSeriesColors, number_text(percent, 1));
}

/// Returns the table of the runs with these numbers, which have the same classes.
std::string iou_table(const Report& report, const std::vector<size_t>& numbers) {
  const auto names = class_names_of(report.runs[numbers[0]]);
  const EvaluationDetails* details = nullptr;
  for (const size_t i : numbers)
    if (!details && report.runs[i].details && report.runs[i].details->segmentation)
      details = &*report.runs[i].details;
  std::string html = "<table class=\"classes\"><thead><tr><th scope=\"col\">class</th>";
  for (const size_t i : numbers)
    html += "<th scope=\"col\">" + io::escape_xml(report.runs[i].name) + ", IoU %</th>";
  html += "</tr></thead><tbody>\n";
  for (size_t c = 0; c < names.size(); ++c) {
    html += "<tr><th scope=\"row\">" + (details ? color_of(*details, c) : "") + io::escape_xml(names[c]) +
            "</th>";
    for (const size_t i : numbers) html += iou_cell(report.runs[i], i, c);
    html += "</tr>\n";
  }
  if (details)
    html +=
        "<tr><th scope=\"row\"><i class=\"swatch\" style=\"background:#000\"></i>void (not "
        "counted)</th></tr>\n";
  html = html_scroll_box("IoU per class", html + "</tbody></table>\n");
  if (names.size() > kTallTable) html.insert(html.find("scroll") + 6, " tall");
  return html;
}

/// The confusion of a run: counts, and the sum of each row.
struct Confusion {
  const int64_t* counts;
  size_t classes;
  std::vector<int64_t> rows;

  explicit Confusion(const at::Tensor& confusion)
      : counts(confusion.const_data_ptr<int64_t>()), classes(static_cast<size_t>(confusion.size(0))) {
    for (size_t r = 0; r < classes; ++r) {
      rows.push_back(0);
      for (size_t c = 0; c < classes; ++c) rows.back() += count(r, c);
    }
  }
  int64_t count(size_t row, size_t column) const { return counts[row * classes + column]; }
  double share(size_t row, size_t column) const {
    return rows[row] > 0 ? static_cast<double>(count(row, column)) / static_cast<double>(rows[row])
                         : std::numeric_limits<double>::quiet_NaN();
  }
};

std::string percent_text(double share) {
  return number_text(100 * share, 1);
}

/// Returns the most frequent confusions, by their share of the truth.
std::string confusions_table(const Confusion& confusion, const std::vector<std::string>& names,
                             const char* counted) {
  struct Cell {
    double share;
    size_t row, column;
  };
  std::vector<Cell> cells;
  for (size_t r = 0; r < confusion.classes; ++r)
    for (size_t c = 0; c < confusion.classes; ++c)
      if (r != c && confusion.count(r, c) > 0) cells.push_back({confusion.share(r, c), r, c});
  const size_t most = std::min(kConfusions, cells.size());
  std::partial_sort(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(most), cells.end(),
                    [](const Cell& a, const Cell& b) { return a.share > b.share; });
  std::vector<std::vector<std::string>> rows;
  rows.reserve(most);
  for (size_t i = 0; i < most; ++i)
    rows.push_back({names[cells[i].row] + " \u2192 " + names[cells[i].column], percent_text(cells[i].share),
                    std::to_string(confusion.count(cells[i].row, cells[i].column))});
  if (rows.empty()) return "<p class=\"note\">No confusion.</p>\n";
  return html_scroll_box("most frequent confusions",
                         html_table("pairs", {"truth \u2192 prediction", "% of the truth", counted}, rows));
}

std::string whole_table(const Confusion& confusion, const std::vector<std::string>& names) {
  std::vector<std::string> head{"truth, % predicted as"};
  head.insert(head.end(), names.begin(), names.end());
  std::vector<std::vector<std::string>> rows;
  for (size_t r = 0; r < confusion.classes; ++r) {
    rows.push_back({names[r]});
    for (size_t c = 0; c < confusion.classes; ++c) rows.back().push_back(percent_text(confusion.share(r, c)));
  }
  return "<details><summary>All shares as a table</summary>\n" +
         html_scroll_box("confusion matrix", html_table("counts", head, rows)) + "</details>\n";
}

std::string confusion_of(const ReportRun& run) {
  const EvaluationDetails& details = *run.details;
  const Confusion confusion(details.confusion);
  io::HeatMap map;
  map.title = "";
  map.row_label = "truth";
  map.column_label = "prediction";
  map.names = details.class_names;
  map.description = fmt::format("Each row shows as which classes the {} of a true class are predicted.",
                                details.segmentation ? "pixels" : "images");
  for (size_t r = 0; r < confusion.classes; ++r)
    for (size_t c = 0; c < confusion.classes; ++c) map.values.push_back(confusion.share(r, c));
  std::string html = fmt::format("<div><h3>{}</h3>\n", io::escape_xml(run.name));
  if (confusion.classes <= kMostClassesOfAMap)
    html += html_scroll_box(
        "confusion matrix of " + run.name,
        fmt::format("<div style=\"width:{}px\">{}</div>\n", io::width_of(map), io::to_svg(map)));
  else
    html += fmt::format(
        "<p class=\"note\">{} classes are too many for a map; the table has the most frequent "
        "confusions.</p>\n",
        confusion.classes);
  html += confusions_table(confusion, details.class_names, details.segmentation ? "pixels" : "images");
  if (confusion.classes <= kMostClassesOfATable) html += whole_table(confusion, details.class_names);
  return html + "</div>\n";
}

}  // namespace

std::vector<std::string> class_names_of(const ReportRun& run) {
  const size_t classes = class_iou_of(run).size();
  const auto& known = run.details ? run.details->class_names : run.class_names;
  if (classes == 0 || known.size() == classes) return known;
  std::vector<std::string> names;
  names.reserve(classes);
  for (size_t c = 0; c < classes; ++c) names.push_back(fmt::format("class {}", c));
  return names;
}

std::string class_iou_html(const Report& report) {
  std::vector<std::vector<size_t>> groups;  // of runs with the same classes
  for (size_t i = 0; i < report.runs.size(); ++i) {
    if (class_iou_of(report.runs[i]).empty()) continue;
    const auto names = class_names_of(report.runs[i]);
    const auto group = std::ranges::find_if(
        groups, [&](const auto& other) { return class_names_of(report.runs[other[0]]) == names; });
    if (group == groups.end())
      groups.push_back({i});
    else
      group->push_back(i);
  }
  std::string html;
  for (const auto& group : groups) html += iou_table(report, group);
  return html;
}

std::string confusion_html(const Report& report) {
  std::string html;
  for (const ReportRun& run : report.runs)
    if (run.details && run.details->confusion.defined() && !run.details->class_names.empty())
      html += confusion_of(run);
  if (html.empty()) return html;
  return "<p class=\"note\">Rows are normalized: a cell is the share of the truth that is predicted as the "
         "class of "
         "its column. Grey: a class that does not occur.</p>\n<div class=\"charts\">\n" +
         html + "</div>\n";
}

}  // namespace palimpsest::train
