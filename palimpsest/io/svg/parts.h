#pragma once

#include <string>
#include <string_view>
#include <vector>

/// The elements of all charts. Positions are in pixels from the upper left corner.
namespace palimpsest::io::svg {

inline constexpr const char* kInk = "#1f2937";
inline constexpr const char* kFaintInk = "#6b7280";
inline constexpr const char* kGrid = "#e5e7eb";
inline constexpr const char* kPaper = "white";
inline constexpr const char* kFont = "font-family=\"Helvetica, Arial, 'Liberation Sans', sans-serif\"";

/// An axis, which maps data values to pixels.
struct Scale {
  std::vector<double> ticks;
  double low, high;  // data
  double from, to;   // pixels
  double operator()(double v) const { return from + (v - low) / (high - low) * (to - from); }
  double step() const { return ticks.size() > 1 ? ticks[1] - ticks[0] : 1; }
};

std::string text(double x, double y, std::string_view content, const char* anchor = "start", int size = 12,
                 const char* color = kInk, const char* more = "");
std::string line(double x1, double y1, double x2, double y2, const char* color, const char* more = "");

/// Returns the opening tag, a white background, and the title, whose text begins at `title_x`. Programs that
/// read a page aloud say `title` and `description`. "</svg>" must follow the last element.
std::string begin(int width, int height, const std::string& title, double title_x,
                  const std::string& description = "");
/// Returns `name` with at most as many characters as fit in `pixels` at `size`.
std::string fitted(const std::string& name, double pixels, int size = 12);
/// Returns about how wide `name` is drawn, in pixels.
double text_width(std::string_view name, int size = 12);
/// Returns horizontal lines at the ticks of a vertical axis, with their labels left of `from`.
std::string grid(double from, double to, const Scale& y);
/// Returns the rotated label of a vertical axis.
std::string vertical_label(const Scale& y, const std::string& label);
/// Returns a vertical axis over [low, high] and 0, for a chart of `pixels` height. The caller sets `from` and
/// `to`.
Scale vertical_scale(double low, double high, int pixels);
/// Returns the right end of the tick labels, in pixels.
double room_for_labels(const Scale& y);

}  // namespace palimpsest::io::svg
