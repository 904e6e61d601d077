#include "palimpsest/io/svg.h"
#include "palimpsest/io/svg/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

namespace palimpsest::io {
namespace svg {
namespace {

constexpr double kNames = 130;  // pixels for the names beside and above the cells
constexpr double kSide = 24;    // pixels for the label of an axis
constexpr double kBelow = 46;   // pixels for the scale
constexpr int kMostPercentages = 24, kMostTooltips = 50;

struct Grid {
  int count;
  double cell, left, top;
  explicit Grid(const HeatMap& map)
      : count(static_cast<int>(map.names.size())),
        cell(count <= 12                 ? 36
             : count <= kMostPercentages ? 27
             : count <= kMostTooltips    ? 16
                                         : 8),
        left(kNames + kSide),
        top((map.title.empty() ? 0 : 34) + kSide + kNames) {}
  double x(int column) const { return left + cell * column; }
  double y(int row) const { return top + cell * row; }
  int width() const { return static_cast<int>(std::max(x(count), left + 270) + 12); }
  int height() const { return static_cast<int>(y(count) + kBelow); }
};

/// The depth of the colour.
double opacity(double share) {
  return std::sqrt(std::clamp(share, 0.0, 1.0));
}

std::string percentage(double share) {
  return share >= 0.005 ? fmt::format("{:.0f}", 100 * share) : "";
}

std::string cell_title(const HeatMap& map, int row, int column, double share) {
  return fmt::format("{} {}, {} {}: {:.2f} %", map.row_label, map.names[static_cast<size_t>(row)],
                     map.column_label, map.names[static_cast<size_t>(column)], 100 * share);
}

/// Draws each cell by itself.
std::string single_cells(const HeatMap& map, const Grid& grid) {
  // On deeper colours white text has the higher contrast.
  constexpr double kWhiteText = 0.81;
  std::string svg;
  for (int row = 0; row < grid.count; ++row)
    for (int column = 0; column < grid.count; ++column) {
      const double share = map.values[static_cast<size_t>(row) * static_cast<size_t>(grid.count) +
                                      static_cast<size_t>(column)];
      if (!(share > 0)) continue;
      const std::string number = grid.count <= kMostPercentages ? percentage(share) : "";
      svg += fmt::format(
          "<g><title>{}</title><rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" "
          "fill=\"{}\" "
          "fill-opacity=\"{:.3f}\"/>",
          escape_xml(cell_title(map, row, column, share)), grid.x(column), grid.y(row), grid.cell, grid.cell,
          series_color(1), opacity(share));
      if (!number.empty())
        svg += text(grid.x(column) + grid.cell / 2, grid.y(row) + grid.cell / 2 + 4, number, "middle", 11,
                    opacity(share) > kWhiteText ? "white" : "black");
      svg += "</g>\n";
    }
  return svg;
}

/// Draws all cells of one depth as one path: 171 classes then take some 100 KB.
std::string merged_cells(const HeatMap& map, const Grid& grid) {
  constexpr int kDepths = 24;
  std::map<int, std::string> paths;
  for (int row = 0; row < grid.count; ++row)
    for (int column = 0; column < grid.count; ++column) {
      const double share = map.values[static_cast<size_t>(row) * static_cast<size_t>(grid.count) +
                                      static_cast<size_t>(column)];
      if (!(share > 0)) continue;
      const int depth = std::max(1, static_cast<int>(std::lround(kDepths * opacity(share))));
      paths[depth] += fmt::format("M{:.0f},{:.0f}h{:.0f}v{:.0f}h-{:.0f}z", grid.x(column), grid.y(row),
                                  grid.cell, grid.cell, grid.cell);
    }
  std::string svg;
  for (const auto& [depth, path] : paths)
    svg += fmt::format("<path d=\"{}\" fill=\"{}\" fill-opacity=\"{:.3f}\"/>\n", path, series_color(1),
                       static_cast<double>(depth) / kDepths);
  return svg;
}

/// Draws the names of rows and columns; a row without data is grey.
std::string names(const HeatMap& map, const Grid& grid) {
  const int size = static_cast<int>(std::min(12.0, grid.cell));
  std::string svg;
  for (int i = 0; i < grid.count; ++i) {
    const std::string& name = map.names[static_cast<size_t>(i)];
    const std::string shown = fitted(name, kNames - 10, size);
    const std::string tooltip = "<g><title>" + escape_xml(name) + "</title>";
    if (std::isnan(map.values[static_cast<size_t>(i) * static_cast<size_t>(grid.count)]))
      svg += fmt::format("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" fill=\"{}\"/>\n",
                         grid.left, grid.y(i), grid.cell * grid.count, grid.cell, kGrid);
    const double middle = grid.y(i) + grid.cell / 2 + 0.36 * size;
    svg += tooltip + text(grid.left - 6, middle, shown, "end", size) + "</g>\n";
    const double x = grid.x(i) + grid.cell / 2 + 0.36 * size, y = grid.top - 6;
    svg += tooltip +
           text(x, y, shown, "start", size, kInk,
                fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", x, y).c_str()) +
           "</g>\n";
  }
  return svg;
}

std::string scale(const Grid& grid) {
  std::string svg;
  double x = grid.left;
  for (double share : {0.01, 0.05, 0.25, 0.5, 1.0}) {
    svg += fmt::format(
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"14\" height=\"14\" fill=\"{}\" fill-opacity=\"{:.3f}\"/>\n",
        x, grid.y(grid.count) + 18, series_color(1), opacity(share));
    svg += text(x + 18, grid.y(grid.count) + 29, fmt::format("{:.0f} %", 100 * share), "start", 11);
    x += 52;
  }
  return svg;
}

}  // namespace
}  // namespace svg

int width_of(const HeatMap& map) {
  return svg::Grid(map).width();
}

std::string to_svg(const HeatMap& map) {
  using namespace svg;
  if (map.values.size() != map.names.size() * map.names.size())
    throw std::invalid_argument(fmt::format("[svg] the heat map '{}' needs {} values for {} names, got {}",
                                            map.title, map.names.size() * map.names.size(), map.names.size(),
                                            map.values.size()));
  const Grid grid(map);
  const double side = grid.cell * grid.count;
  std::string svg = begin(grid.width(), grid.height(), map.title, 12, map.description);
  svg += names(map, grid);
  svg += grid.count <= kMostTooltips ? single_cells(map, grid) : merged_cells(map, grid);
  svg += fmt::format(
      "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" fill=\"none\" stroke=\"{}\"/>\n",
      grid.left, grid.top, side, side, kFaintInk);
  svg += text(grid.left, grid.top - kNames - 8, map.column_label, "start", 12, kFaintInk);
  const double y = grid.top + std::min(side / 2, 150.0);
  svg += text(16, y, map.row_label, "middle", 12, kFaintInk,
              fmt::format(" transform=\"rotate(-90 16 {:.1f})\"", y).c_str());
  return svg + scale(grid) + "</svg>\n";
}

}  // namespace palimpsest::io
