#include "palimpsest/io/svg/parts.h"

#include "palimpsest/io/svg.h"

#include <fmt/format.h>

#include <algorithm>

namespace palimpsest::io::svg {

std::string text(double x, double y, std::string_view content, const char* anchor, int size,
                 const char* color, const char* more) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" fill=\"{}\"{}>{}</text>\n", x, y,
      anchor, size, color, more, escape_xml(content));
}

std::string line(double x1, double y1, double x2, double y2, const char* color, const char* more) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"{}/>\n", x1,
                     y1, x2, y2, color, more);
}

std::string begin(int width, int height, const std::string& title, double title_x,
                  const std::string& description) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "role=\"img\" {2}>\n",
      width, height, kFont);
  if (!title.empty()) svg += "<title>" + escape_xml(title) + "</title>\n";
  if (!description.empty()) svg += "<desc>" + escape_xml(description) + "</desc>\n";
  svg += fmt::format("<rect width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", width, height, kPaper);
  if (title.empty()) return svg;
  // Bold text is a tenth wider.
  const double room = width - title_x - 8, wanted = 1.1 * text_width(title, 16);
  const int size = std::max(10, static_cast<int>(16 * std::min(1.0, room / wanted)));
  svg += text(title_x, 24, fitted(title, room / 1.1, size), "start", size, kInk, " font-weight=\"bold\"");
  return svg;
}

double text_width(std::string_view name, int size) {
  // The characters of UTF-8 are its bytes without the continuations.
  const auto characters = std::count_if(name.begin(), name.end(), [](char c) { return (c & 0xc0) != 0x80; });
  return 0.57 * size * static_cast<double>(characters);
}

std::string fitted(const std::string& name, double pixels, int size) {
  if (text_width(name, size) <= pixels) return name;
  std::string_view kept = name;
  while (!kept.empty() && text_width(kept, size) + text_width(".", size) > pixels) {
    kept.remove_suffix(1);
    while (!kept.empty() && (name[kept.size()] & 0xc0) == 0x80) kept.remove_suffix(1);
  }
  return std::string(kept) + "\u2026";
}

std::string grid(double from, double to, const Scale& y) {
  std::string svg;
  for (double tick : y.ticks) {
    svg += line(from, y(tick), to, y(tick), kGrid);
    svg += text(from - 8, y(tick) + 4, tick_label(tick, y.step()), "end");
  }
  return svg;
}

std::string vertical_label(const Scale& y, const std::string& label) {
  const double middle = (y.from + y.to) / 2;
  return text(16, middle, label, "middle", 12, kFaintInk,
              fmt::format(" transform=\"rotate(-90 16 {:.1f})\"", middle).c_str());
}

Scale vertical_scale(double low, double high, int pixels) {
  Scale y{round_ticks(std::min(0.0, low), std::max(0.0, high), (pixels - 100) / 50), 0, 0, 0, 0};
  y.low = y.ticks.front(), y.high = y.ticks.back();
  return y;
}

double room_for_labels(const Scale& y) {
  std::size_t widest = 0;
  for (double tick : y.ticks) widest = std::max(widest, tick_label(tick, y.step()).size());
  return 38 + 7.0 * static_cast<double>(widest);
}

}  // namespace palimpsest::io::svg
