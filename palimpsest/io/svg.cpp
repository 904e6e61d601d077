#include "palimpsest/io/svg.h"

#include "palimpsest/io/svg/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace palimpsest::io {

namespace {

struct Ink {
  const char *light, *dark;  // on white, on kDarkPaper
};
// Blue and orange stay apart for colour-blind readers, and in grey.
constexpr std::array<Ink, kSeriesColors> kSeriesInks{{{"#d9730d", "#f0883e"},
                                                      {"#1d4ed8", "#3b82f6"},
                                                      {"#15803d", "#4ade80"},
                                                      {"#9333ea", "#c084fc"},
                                                      {"#be123c", "#fb7185"},
                                                      {"#0e7490", "#22d3ee"}}};
constexpr Ink kOtherInks[] = {{svg::kInk, "#e5e7eb"}, {svg::kFaintInk, "#9ca3af"}, {svg::kGrid, "#374151"}};
constexpr const char* kDarkPaper = "#111827";

}  // namespace

std::string series_color(std::size_t index) {
  return kSeriesInks[index % kSeriesInks.size()].light;
}

std::string dark_series_color(std::size_t index) {
  return kSeriesInks[index % kSeriesInks.size()].dark;
}

std::string dark_chart_style() {
  std::string css;
  const auto add = [&](const Ink& ink) {
    for (const char* attribute : {"fill", "stroke"})
      css += fmt::format("svg [{0}=\"{1}\"]{{{0}:{2}}}\n", attribute, ink.light, ink.dark);
  };
  for (const Ink& ink : kSeriesInks) add(ink);
  for (const Ink& ink : kOtherInks) add(ink);
  css += fmt::format("svg rect[fill=\"{}\"]{{fill:{}}}\n", svg::kPaper, kDarkPaper);
  return css +
         "svg text[fill=\"white\"]{fill:black}\nsvg text[fill=\"black\"]{fill:white}\n";  // in heat maps
}

std::vector<double> round_ticks(double low, double high, int count) {
  if (!(high > low)) high = low + (low == 0 ? 1 : std::abs(low) / 2);
  const double rough = (high - low) / std::max(1, count);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double digit = rough / power;
  const double step = power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
  const double slack = 1e-9;  // 0.3 / 0.1 is a little below 3
  const auto first = static_cast<int64_t>(std::floor(low / step + slack));
  const auto last = static_cast<int64_t>(std::ceil(high / step - slack));
  std::vector<double> ticks;
  for (int64_t i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

std::string tick_label(double value, double step) {
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9);
  std::string digits = fmt::format("{:.{}f}", std::abs(value), decimals);
  const bool negative = value < 0 && digits.find_first_of("123456789") != std::string::npos;
  const size_t whole = std::min(digits.find('.'), digits.size());
  for (size_t at = whole; at > 3;) {
    at -= 3;
    digits.insert(digits.begin() + static_cast<std::ptrdiff_t>(at), ',');
  }
  return negative ? std::string("\u2212").append(digits) : digits;
}

std::string escape_xml(std::string_view content) {
  std::string result;
  for (char c : content) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace palimpsest::io
