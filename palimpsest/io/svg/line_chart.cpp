#include "palimpsest/io/svg.h"

#include "palimpsest/io/svg/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace palimpsest::io {
namespace svg {
namespace {

struct Point {
  double x, y;
};

/// Returns the lowest and the highest finite value of all series; 0 and 1 if there is none.
std::array<double, 2> extent(const LineChart& chart, std::vector<double> LineChart::Series::* values) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const auto& series : chart.series) {
    for (double v : series.*values) {
      if (!std::isfinite(v)) continue;
      low = std::min(low, v);
      high = std::max(high, v);
    }
  }
  if (low > high) return {0, 1};
  return {low, high};
}

/// Returns whether every x is a whole number (steps, epochs): the axis then has no fractions.
bool whole_numbers(const LineChart& chart) {
  for (const auto& series : chart.series)
    for (double v : series.x)
      if (std::isfinite(v) && v != std::floor(v)) return false;
  return true;
}

/// Returns the series in pixels, divided at its gaps.
std::vector<std::vector<Point>> runs(const LineChart::Series& series, const Scale& x, const Scale& y) {
  std::vector<std::vector<Point>> result(1);
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (std::isfinite(series.x[i]) && std::isfinite(series.y[i]))
      result.back().push_back({x(series.x[i]), y(series.y[i])});
    else if (!result.back().empty())
      result.emplace_back();
  }
  if (result.back().empty()) result.pop_back();
  return result;
}

/// Returns the first, lowest, highest and last point of each pixel column, in their order.
std::vector<Point> thin(const std::vector<Point>& points) {
  std::vector<Point> thinned;
  for (size_t begin = 0; begin < points.size();) {
    size_t end = begin, lowest = begin, highest = begin;
    for (; end < points.size() && std::floor(points[end].x) == std::floor(points[begin].x); ++end) {
      if (points[end].y < points[lowest].y) lowest = end;
      if (points[end].y > points[highest].y) highest = end;
    }
    std::array<size_t, 4> of_column{begin, lowest, highest, end - 1};
    std::sort(of_column.begin(), of_column.end());
    for (size_t i = 0; i < of_column.size(); ++i)
      if (i == 0 || of_column[i] != of_column[i - 1]) thinned.push_back(points[of_column[i]]);
    begin = end;
  }
  return thinned;
}

std::string path(const std::vector<Point>& points, bool step) {
  std::string d = fmt::format("M{:.1f},{:.1f}", points[0].x, points[0].y);
  for (size_t i = 1; i < points.size(); ++i) {
    if (step)
      d += fmt::format("H{:.1f}V{:.1f}", points[i].x, points[i].y);
    else
      d += fmt::format("L{:.1f},{:.1f}", points[i].x, points[i].y);
  }
  return d;
}

std::string axes(const LineChart& chart, const Scale& x, const Scale& y) {
  std::string svg;
  svg += grid(x.from, x.to, y);
  for (double tick : x.ticks) {
    if (tick < x.low || tick > x.high) continue;  // the x axis ends with the data
    svg += line(x(tick), y.from, x(tick), y.from + 5, kInk);
    svg += text(x(tick), y.from + 19, tick_label(tick, x.step()), "middle");
  }
  svg += line(x.from, y.from, x.to, y.from, kInk);
  svg += text((x.from + x.to) / 2, y.from + 38, chart.x_label, "middle", 12, kFaintInk);
  svg += vertical_label(y, chart.y_label);
  return svg;
}

constexpr double kMarkRow = 14;  // pixels per line of labels

/// A mark, and the line of labels that has its name; 0 is the lowest.
struct PlacedMark {
  LineChart::Mark mark;
  int row;
};

double label_width(const std::string& name) {
  return text_width(name, 11) + 8;
}

/// Places every mark of the axis, from left to right, in the lowest line where its name covers no other name.
std::vector<PlacedMark> place(std::vector<LineChart::Mark> marks, const Scale& x) {
  std::stable_sort(marks.begin(), marks.end(), [](const auto& a, const auto& b) { return a.x < b.x; });
  std::vector<PlacedMark> placed;
  std::vector<double> free_from;  // per line, in pixels
  for (const auto& mark : marks) {
    if (mark.x < x.low || mark.x > x.high) continue;
    const double begin = std::min(x(mark.x), x.to - label_width(mark.name));
    size_t row = 0;
    while (row < free_from.size() && free_from[row] > begin) ++row;
    if (row == free_from.size()) free_from.push_back(0);
    free_from[row] = begin + label_width(mark.name);
    placed.push_back({mark, static_cast<int>(row)});
  }
  return placed;
}

/// Draws vertical lines with their names above the plot, where there is no curve.
std::string draw(const std::vector<PlacedMark>& marks, const Scale& x, const Scale& y) {
  std::string svg;
  for (const auto& [mark, row] : marks) {
    const std::string color = mark.series < 0 ? kFaintInk : series_color(static_cast<size_t>(mark.series));
    const double at = x(mark.x), label = std::min(at, x.to - label_width(mark.name));
    const double height = y.to - 4 - kMarkRow * row;
    svg += line(at, y.from, at, height - 9, color.c_str(), " stroke-dasharray=\"3 3\"");
    svg += text(label + 4, height, mark.name, "start", 11);
  }
  return svg;
}

std::string color_of(const LineChart& chart, std::size_t series) {
  const int as = chart.series[series].color_of;
  return series_color(as < 0 ? series : static_cast<std::size_t>(as));
}

constexpr double kLegendRow = 18;  // pixels per line of the legend

struct Legend {
  std::string svg;
  int rows = 1;
};

/// Draws the names of the series from `x` to `right`, in as many lines as they need. A name that is longer
/// than a line is shortened.
Legend legend(const LineChart& chart, double from, double right, double y) {
  constexpr double kSample = 26, kGap = 22;
  Legend result;
  double x = from;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    if (chart.series[i].name.empty()) continue;
    const std::string name = fitted(chart.series[i].name, right - from - kSample);
    const double end = x + kSample + text_width(name);
    if (x > from && end > right) {
      ++result.rows;
      y += kLegendRow;
      x = from;
    }
    result.svg += line(x, y - 4, x + 20, y - 4, color_of(chart, i).c_str(), " stroke-width=\"3\"");
    result.svg += text(x + kSample, y, name);
    x += kSample + text_width(name) + kGap;
  }
  return result;
}

/// Describes the curves in words, for readers who do not see them.
std::string description(const LineChart& chart) {
  std::string words = chart.y_label + " over " + chart.x_label + ".";
  for (const auto& series : chart.series) {
    double low = 0, high = 0, first = 0, last = 0;
    bool any = false;
    for (double v : series.y) {
      if (!std::isfinite(v)) continue;
      if (!any) low = high = first = v;
      any = true;
      low = std::min(low, v), high = std::max(high, v), last = v;
    }
    if (series.name.empty()) continue;
    words += any ? fmt::format(" {}: from {:.4g} to {:.4g}, lowest {:.4g}, highest {:.4g}.", series.name,
                               first, last, low, high)
                 : " " + series.name + ": no data.";
  }
  return words;
}

std::string curve(const LineChart::Series& series, const std::string& color, const Scale& x, const Scale& y) {
  std::string svg;
  for (const auto& run : runs(series, x, y)) {
    const bool dense = run.size() > 2 * static_cast<size_t>(x.to - x.from);
    svg += fmt::format(
        "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"{}/>\n",
        path(dense ? thin(run) : run, series.step), color, run.size() > 200 ? 1.5 : 2,
        series.dashed ? " stroke-dasharray=\"6 4\"" : "");
    if (series.step || series.dashed || run.size() > 30) continue;
    for (const Point& p : run)
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", p.x, p.y, color);
  }
  return svg;
}

}  // namespace
}  // namespace svg

std::string to_svg(const LineChart& chart) {
  using namespace svg;
  for (const auto& series : chart.series)
    if (series.x.size() != series.y.size())
      throw std::invalid_argument(fmt::format("[svg] series '{}' needs as many y as x, got {} x and {} y",
                                              series.name, series.x.size(), series.y.size()));
  auto [x_low, x_high] = extent(chart, &LineChart::Series::x);
  auto [y_low, y_high] = extent(chart, &LineChart::Series::y);
  if (x_high == x_low) x_high = x_low + 1;

  // The y axis comes first: the width of its labels decides the room for x, and x decides how many lines of
  // labels the marks need.
  Scale y = vertical_scale(y_low, y_high, chart.height);
  Scale x{round_ticks(x_low, x_high, chart.width / 95), x_low, x_high, 0, 0};
  if (x.step() < 1 && whole_numbers(chart))
    x.ticks = round_ticks(x_low, x_high, static_cast<int>(x_high - x_low));
  x.from = room_for_labels(y), x.to = chart.width - 18;
  const auto placed = place(chart.marks, x);
  int rows = 0;
  for (const auto& mark : placed) rows = std::max(rows, mark.row + 1);
  const double legend_y = chart.title.empty() ? 18 : 46;
  const Legend names = legend(chart, x.from, x.to, legend_y);
  y.from = chart.height - 48, y.to = legend_y + kLegendRow * (names.rows - 1) + 16 + kMarkRow * rows;

  std::string svg = begin(chart.width, chart.height, chart.title, x.from, description(chart));
  svg += names.svg;
  svg += axes(chart, x, y);
  svg += draw(placed, x, y);
  bool any = false;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const std::string drawn = curve(chart.series[i], color_of(chart, i), x, y);
    any = any || !drawn.empty();
    svg += drawn;
  }
  if (!any) svg += text((x.from + x.to) / 2, (y.from + y.to) / 2, "no data", "middle", 14, kFaintInk);
  return svg + "</svg>\n";
}

}  // namespace palimpsest::io
