#include "palimpsest/io/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace palimpsest::io {

std::string series_color(std::size_t index) {
  // Blue and orange stay apart for colour-blind readers, and in grey.
  static constexpr std::array kColors{"#d9730d", "#1d4ed8", "#15803d", "#9333ea", "#be123c", "#0e7490"};
  return kColors[index % kColors.size()];
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
