#include "palimpsest/io/svg.h"
#include "palimpsest/io/svg/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace palimpsest::io {

std::string to_svg(const BarChart& chart) {
  using namespace svg;
  double low = 0, high = 0;
  std::size_t bars = 0;
  for (const auto& group : chart.groups)
    for (const auto& bar : group.bars) {
      ++bars;
      if (!std::isfinite(bar.value)) continue;
      low = std::min(low, bar.value);
      high = std::max(high, bar.value);
    }
  if (low == high) high = 1;
  Scale y = vertical_scale(low, high, chart.height);
  y.from = chart.height - 52, y.to = chart.title.empty() ? 34 : 62;
  const double from = room_for_labels(y), to = chart.width - 18;
  std::string svg = begin(chart.width, chart.height, chart.title, from);
  svg += grid(from, to, y);
  svg += vertical_label(y, chart.y_label);
  // Between two groups is the room of one bar.
  const double room = (to - from) / static_cast<double>(std::max<std::size_t>(1, bars + chart.groups.size()));
  double at = from + room / 2;
  for (const auto& group : chart.groups) {
    const double begin_of_group = at;
    for (const auto& bar : group.bars) {
      const bool drawn = std::isfinite(bar.value);
      const double top = drawn ? y(std::max(bar.value, 0.0)) : y(0),
                   foot = drawn ? y(std::min(bar.value, 0.0)) : y(0);
      if (drawn)
        svg +=
            fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n",
                        at + 3, top, room - 6, foot - top, series_color(static_cast<std::size_t>(bar.color)));
      svg += text(at + room / 2, top - 5, bar.label, "middle", 11);
      svg += text(at + room / 2, y.from + 16, bar.name, "middle", 11);
      at += room;
    }
    svg += text((begin_of_group + at) / 2, y.from + 36, group.name, "middle", 12, kFaintInk);
    at += room;
  }
  svg += line(from, y(0), to, y(0), kInk);
  if (bars == 0) svg += text((from + to) / 2, (y.from + y.to) / 2, "no data", "middle", 14, kFaintInk);
  return svg + "</svg>\n";
}

}  // namespace palimpsest::io
