#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::io {

/// A line chart as a self-contained SVG element, dark on white: axes with round ticks, legend, no script, no
/// style sheet, so that it reads the same in a page, alone in a browser and in a converter.
struct LineChart {
  struct Series {
    std::string name;
    std::vector<double> x, y;  ///< same length, x ascending; drawn as a step line if `step`
    bool step = false;         ///< each y holds until the next x
    bool dashed = false;       ///< what was not measured
    int color_of = -1;  ///< drawn in the colour of that series; without a name it is no line of the legend
  };
  struct Mark {  ///< a labelled vertical line
    double x;
    std::string name;
    int series = -1;  ///< drawn in the colour of that series; -1: grey
  };
  std::string title{}, x_label{}, y_label{};  ///< labels carry the unit: "memory, MiB"
  std::vector<Series> series{};
  std::vector<Mark> marks{};
  int width = 760, height = 360;  ///< pixels
};

/// The chart as text that starts with "<svg". The y axis starts at 0 unless a value is negative, so that
/// heights can be compared. NaN and infinite values leave a gap. A series with more points than pixels is
/// thinned to the first, lowest, highest and last value of each pixel column: no peak is lost, and 100,000
/// samples make a file of some 30 KB. Throws std::invalid_argument for a series whose x and y differ in
/// length.
std::string to_svg(const LineChart& chart);

/// Bars side by side, in groups, in the same style.
struct BarChart {
  struct Bar {
    std::string name;   ///< below it
    double value;       ///< from 0
    std::string label;  ///< above it
    int color = 0;      ///< that of a series of this number
  };
  struct Group {
    std::string name;  ///< below its bars
    std::vector<Bar> bars;
  };
  std::string title{}, y_label{};
  std::vector<Group> groups{};
  int width = 760, height = 360;  ///< pixels
};

/// As for LineChart. A value that is not finite has a label and no bar.
std::string to_svg(const BarChart& chart);

/// Colour of the i-th series, "#rrggbb"; tables beside a chart can use the same.
std::string series_color(std::size_t index);

/// Round tick positions 1, 2 or 5 times a power of ten apart, about `count` of them, covering [low, high]:
/// the first is <= low, the last >= high.
std::vector<double> round_ticks(double low, double high, int count);

/// `value` with as many decimals as ticks `step` apart need, and commas between thousands: "1,250", "0.05".
std::string tick_label(double value, double step);

/// `text` with the characters that XML and HTML reserve replaced.
std::string escape_xml(std::string_view text);

}  // namespace palimpsest::io
