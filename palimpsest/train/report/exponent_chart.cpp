#include "palimpsest/train/report/exponent_chart.h"

#include "palimpsest/io/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace palimpsest::train {
namespace {

/// Turns the bars of a histogram into a step curve that begins at the axis' first exponent, `low`.
io::LineChart::Series series_of(std::string name, const amp::ExponentHistogram& h, double low) {
  io::LineChart::Series series{std::move(name), {low}, {0}, /*step=*/true};
  const auto bars = h.bars();
  for (size_t i = 0; i < bars.shares.size(); ++i) {
    series.x.push_back(bars.exponents[i]);
    series.y.push_back(100 * bars.shares[i]);
  }
  // The last bar needs its width, and 2^-24 must lie on the axis.
  series.x.push_back(std::max(series.x.back() + 1, amp::kLeastHalfExponent + 1.0));
  series.y.push_back(0);
  return series;
}

double first_exponent(const amp::ExponentHistogram& h) {
  const auto bars = h.bars();
  return bars.exponents.empty() ? 0 : bars.exponents[0];
}

}  // namespace

std::string to_svg(const ExponentRecord& record) {
  io::LineChart chart;
  chart.width = 520;
  chart.title = fmt::format("Gradients of step {}; recommended constant loss scale {}", record.step,
                            record.recommended_scale);
  chart.x_label = "binary exponent of |gradient|";
  chart.y_label = "share, %";
  constexpr double kLeast = amp::kLeastHalfExponent;
  const double scaled = kLeast - std::log2(record.recommended_scale);
  const double low =
      std::min({kLeast, scaled, first_exponent(record.weights), first_exponent(record.activations)}) - 1;
  chart.series.push_back(series_of("weight gradients", record.weights, low));
  if (record.activations.values() > 0)
    chart.series.push_back(series_of("activation gradients", record.activations, low));
  chart.marks.push_back({kLeast, "least f16"});
  chart.marks.push_back({scaled, "least f16, scaled"});
  return io::to_svg(chart);
}

}  // namespace palimpsest::train
