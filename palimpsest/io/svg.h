#pragma once

#include <string>
#include <vector>

namespace palimpsest::io {

/// A line chart as a self-contained SVG element: axes with round ticks, units, legend, no script.
struct LineChart {
  struct Series {
    std::string name;
    std::vector<double> x, y;  ///< same length; drawn as a step line if `step`
    bool step = false;
  };
  struct Mark {  ///< a labelled vertical line
    double x;
    std::string name;
  };
  std::string title, x_label, y_label;
  std::vector<Series> series;
  std::vector<Mark> marks;
  int width = 760, height = 360;
};

std::string to_svg(const LineChart& chart);

}  // namespace palimpsest::io
