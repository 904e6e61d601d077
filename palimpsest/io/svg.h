#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::io {

/// A line chart for a self-contained SVG element: axes with round ticks, a legend, dark on white. It has no
/// script and no style sheet, so it looks the same in a page, alone in a browser and in a converter.
struct LineChart {
  struct Series {
    std::string name;          ///< in the legend; "": the legend leaves the series out
    std::vector<double> x, y;  ///< same length, x ascending
    bool step = false;         ///< each y holds until the next x
    bool dashed = false;       ///< for values that were not measured
    int color_of = -1;         ///< number of the series whose colour it has; -1: its own colour
  };
  struct Mark {  ///< a labelled vertical line
    double x;
    std::string name;
    int series = -1;  ///< number of the series whose colour it has; -1: grey
  };
  std::string title{}, x_label{}, y_label{};  ///< labels with their units: "memory, MiB"
  std::vector<Series> series{};
  std::vector<Mark> marks{};
  int width = 760, height = 360;  ///< pixels
};

/// Returns the chart as text that starts with "<svg". The y axis starts at 0, so that heights can be
/// compared, unless a value is negative. NaN and infinite values leave a gap. A series with more points than
/// pixels is thinned to the first, lowest, highest and last value of each column of pixels: no peak is lost,
/// and 100,000 samples take some 30 KB. Throws std::invalid_argument for a series whose x and y differ in
/// length.
std::string to_svg(const LineChart& chart);

/// Bars side by side, in groups, in the same style.
struct BarChart {
  struct Bar {
    std::string name;   ///< stands below the bar
    double value;       ///< the bar reaches from 0 to here
    std::string label;  ///< stands above the bar
    int color = 0;      ///< number of a series colour
  };
  struct Group {
    std::string name;  ///< stands below the bars
    std::vector<Bar> bars;
  };
  std::string title{}, y_label{};
  std::vector<Group> groups{};
  int width = 760, height = 360;  ///< pixels
};

/// Returns the chart as text that starts with "<svg". A value that is not finite has a label and no bar.
std::string to_svg(const BarChart& chart);

/// A square table of shares, one row and one column per name. The colour of a cell deepens with the square
/// root of its share, so that one percent can be seen. Up to 24 names a cell has its percentage as text, up to
/// 50 as a tooltip.
struct HeatMap {
  std::string title{}, description{};
  std::string row_label{}, column_label{};  ///< what the rows and the columns are: "truth", "prediction"
  std::vector<std::string> names{};         ///< long ones are shortened, their tooltip is whole
  std::vector<double> values{};             ///< (names, names), row-major, in [0, 1]; NaN: no data
};

/// Returns the map as text that starts with "<svg", with a scale of its colours. Its width and height follow
/// from the number of names: 8 pixels per name or more. Throws std::invalid_argument unless there are
/// names * names values.
std::string to_svg(const HeatMap& map);
/// Returns the width of to_svg(map) in pixels.
int width_of(const HeatMap& map);

/// Returns the colour of the i-th series as "#rrggbb", for tables beside a chart. After kSeriesColors series
/// the colours begin again.
inline constexpr std::size_t kSeriesColors = 6;
std::string series_color(std::size_t index);
/// Returns the same colour for a dark page.
std::string dark_series_color(std::size_t index);
/// Returns the rules of a style sheet that show the charts of a page light on dark, for a page that follows
/// the reader's choice (@media (prefers-color-scheme: dark)). The paper is "#111827".
std::string dark_chart_style();

/// Returns about `count` round positions that cover [low, high]: the first is <= low, the last >= high. Their
/// distance is 1, 2 or 5 times a power of ten.
std::vector<double> round_ticks(double low, double high, int count);

/// Formats `value` with as many decimals as ticks at the distance `step` need, and with commas between
/// thousands: "1,250", "0.05".
std::string tick_label(double value, double step);

/// Returns `text` with XML's reserved characters escaped.
std::string escape_xml(std::string_view text);

}  // namespace palimpsest::io
