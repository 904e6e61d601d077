#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

/// Drawing for generated/streets.h: each pixel has a colour in [0, 1] and a class id, which are always
/// painted together. The code uses only +, -, *, / and sqrt, whose results are the same on every machine; the
/// sources are compiled without contraction to FMA.
namespace palimpsest::data::generated {

/// Class ids, in the order of street_class_names().
enum Id : uint8_t {
  kSky,
  kBuilding,
  kPole,
  kRoad,
  kPavement,
  kTree,
  kSign,
  kFence,
  kCar,
  kPedestrian,
  kBicyclist
};

struct Rgb {
  float r, g, b;
};
inline Rgb operator*(Rgb c, float k) {
  return {c.r * k, c.g * k, c.b * k};
}
inline Rgb operator*(Rgb a, Rgb b) {
  return {a.r * b.r, a.g * b.g, a.b * b.b};
}
inline Rgb operator+(Rgb a, Rgb b) {
  return {a.r + b.r, a.g + b.g, a.b + b.b};
}
inline Rgb mix(Rgb a, Rgb b, float t) {
  return a * (1 - t) + b * t;
}

inline int floor_int(float x) {
  const int i = static_cast<int>(x);
  return i - (x < static_cast<float>(i));
}

/// Returns a pseudo-random number in [0, 1) for each lattice point.
inline float hash(int x, int y, uint32_t seed) {
  uint32_t h =
      static_cast<uint32_t>(x) * 0x8DA6B343u ^ static_cast<uint32_t>(y) * 0xD8163841u ^ seed * 0xCB1AB31Fu;
  h = (h ^ (h >> 15)) * 0x2C1B3C6Du;
  h = (h ^ (h >> 12)) * 0x297A2D39u;
  return static_cast<float>((h ^ (h >> 15)) >> 8) * 0x1.0p-24f;
}

/// Returns value noise in [0, 1): a hash at the lattice points, smooth between them.
inline float noise(float x, float y, uint32_t seed) {
  const int xi = floor_int(x), yi = floor_int(y);
  float fx = x - static_cast<float>(xi), fy = y - static_cast<float>(yi);
  fx = fx * fx * (3 - 2 * fx);
  fy = fy * fy * (3 - 2 * fy);
  const float top = hash(xi, yi, seed) * (1 - fx) + hash(xi + 1, yi, seed) * fx;
  const float bottom = hash(xi, yi + 1, seed) * (1 - fx) + hash(xi + 1, yi + 1, seed) * fx;
  return top * (1 - fy) + bottom * fy;
}

class Canvas {
 public:
  Canvas(int height, int width)
      : height(height), width(width), color(static_cast<std::size_t>(height) * width), label(color.size()) {}

  const int height, width;
  std::vector<Rgb> color;      // (height, width)
  std::vector<uint8_t> label;  // (height, width)

  void put(int x, int y, Id id, Rgb c) {
    const std::size_t i = static_cast<std::size_t>(y) * width + x;
    color[i] = c;
    label[i] = id;
  }

  /// Calls pixel(x, y) for each pixel whose centre lies in the box.
  template <class Pixel>
  void each(float x0, float y0, float x1, float y1, const Pixel& pixel) const {
    const int left = first(x0, width), right = first(x1, width), top = first(y0, height),
              bottom = first(y1, height);
    for (int y = top; y < bottom; ++y) {
      for (int x = left; x < right; ++x) pixel(x, y);
    }
  }

  void box(float x0, float y0, float x1, float y1, Id id, Rgb c) {
    each(x0, y0, x1, y1, [&](int x, int y) { put(x, y, id, c); });
  }

  /// A box whose upper edge spans [x0 + inset, x1 - inset].
  void trapezoid(float x0, float y0, float x1, float y1, float inset, Id id, Rgb c) {
    each(x0, y0, x1, y1, [&](int x, int y) {
      const float in = inset * (y1 - (static_cast<float>(y) + 0.5f)) / (y1 - y0);
      const float at = static_cast<float>(x) + 0.5f;
      if (at >= x0 + in && at < x1 - in) put(x, y, id, c);
    });
  }

  /// Calls pixel(x, y, d), where d in [0, 1] is the squared distance from the centre in units of the radii.
  template <class Pixel>
  void each_in_ellipse(float cx, float cy, float rx, float ry, const Pixel& pixel) const {
    if (rx <= 0 || ry <= 0) return;
    each(cx - rx, cy - ry, cx + rx, cy + ry, [&](int x, int y) {
      const float dx = (static_cast<float>(x) + 0.5f - cx) / rx,
                  dy = (static_cast<float>(y) + 0.5f - cy) / ry;
      const float d = dx * dx + dy * dy;
      if (d <= 1) pixel(x, y, d);
    });
  }

  void ellipse(float cx, float cy, float rx, float ry, Id id, Rgb c) {
    each_in_ellipse(cx, cy, rx, ry, [&](int x, int y, float) { put(x, y, id, c); });
  }

  /// A line of `thickness` pixels with round ends.
  void line(float x0, float y0, float x1, float y1, float thickness, Id id, Rgb c) {
    const float r = thickness / 2, dx = x1 - x0, dy = y1 - y0, length = std::max(dx * dx + dy * dy, 1e-12f);
    each(std::min(x0, x1) - r, std::min(y0, y1) - r, std::max(x0, x1) + r, std::max(y0, y1) + r,
         [&](int x, int y) {
           const float px = static_cast<float>(x) + 0.5f - x0, py = static_cast<float>(y) + 0.5f - y0;
           const float t = std::clamp((px * dx + py * dy) / length, 0.0f, 1.0f);
           const float ex = px - t * dx, ey = py - t * dy;
           if (ex * ex + ey * ey <= r * r) put(x, y, id, c);
         });
  }

  /// A soft shadow: colours darken, classes stay.
  void shade(float cx, float cy, float rx, float ry, float strength) {
    each_in_ellipse(cx, cy, rx, ry, [&](int x, int y, float d) {
      Rgb& c = color[static_cast<std::size_t>(y) * width + x];
      c = c * (1 - strength * std::min(1.0f, 2 * (1 - d)));
    });
  }

 private:
  // The first pixel whose centre is at or after `edge`.
  static int first(float edge, int size) {
    return edge <= 0 ? 0 : edge >= static_cast<float>(size) ? size : floor_int(edge + 0.5f);
  }
};

}  // namespace palimpsest::data::generated
