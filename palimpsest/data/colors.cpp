#include "palimpsest/data/colors.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>

namespace palimpsest::data {
namespace {

constexpr double kEigenvalues[] = {0.2175, 0.0188, 0.0045};
constexpr double kEigenvectors[3][3] = {  // (channel, eigenvalue)
    {-0.5675, 0.7192, 0.4009},
    {-0.5808, -0.0045, -0.8140},
    {-0.5836, -0.6948, 0.4203}};

/// ITU-R 601 luma in 16 bits of fraction, as Pillow computes it.
int grey(const uint8_t* rgb) {
  return (19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + 0x8000) >> 16;
}

uint8_t mixed(int from, int to, float factor) {
  const float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  return static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
}

int mean_grey(const uint8_t* pixels, int64_t count) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += grey(pixels + 3 * i);
  return static_cast<int>(std::trunc(static_cast<double>(sum) / static_cast<double>(count) + 0.5));
}

}  // namespace

ColorChange draw_colors(const ColorOptions& options, Random& random) {
  ColorChange change;
  if (!options.changes()) return change;
  std::swap(change.order[2], change.order[random.below(3)]);
  std::swap(change.order[1], change.order[random.below(2)]);
  const double strengths[] = {options.brightness, options.contrast, options.saturation};
  for (int kind = 0; kind < 3; ++kind)
    change.factor[kind] = random.uniform(1 - strengths[kind], 1 + strengths[kind]);
  // Box and Muller: two uniform numbers give two normal ones.
  double normal[4];
  for (int i = 0; i < 4; i += 2) {
    const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
    const double angle = 2 * std::numbers::pi * random.uniform();
    normal[i] = radius * std::cos(angle);
    normal[i + 1] = radius * std::sin(angle);
  }
  for (int c = 0; c < 3; ++c) {
    double offset = 0;
    for (int i = 0; i < 3; ++i)
      offset += 255 * options.lighting * normal[i] * kEigenvalues[i] * kEigenvectors[c][i];
    change.offset[c] = static_cast<int>(std::lround(std::clamp(offset, -255.0, 255.0)));
  }
  return change;
}

void change_colors(const at::Tensor& image, const ColorChange& change) {
  auto* pixels = image.mutable_data_ptr<uint8_t>();
  const int64_t count = image.size(0) * image.size(1);
  for (const ColorChange::Kind kind : change.order) {
    const auto factor = static_cast<float>(change.factor[kind]);
    if (factor == 1) continue;
    if (kind == ColorChange::kSaturation) {
      for (int64_t i = 0; i < count; ++i) {
        uint8_t* rgb = pixels + 3 * i;
        const int luma = grey(rgb);
        for (int c = 0; c < 3; ++c) rgb[c] = mixed(luma, rgb[c], factor);
      }
      continue;
    }
    const int level = kind == ColorChange::kContrast ? mean_grey(pixels, count) : 0;
    uint8_t table[256];
    for (int i = 0; i < 256; ++i) table[i] = mixed(level, i, factor);
    for (int64_t i = 0; i < 3 * count; ++i) pixels[i] = table[pixels[i]];
  }
  if (change.offset == std::array<int, 3>{}) return;
  for (int64_t i = 0; i < count; ++i)
    for (int c = 0; c < 3; ++c)
      pixels[3 * i + c] = static_cast<uint8_t>(std::clamp(pixels[3 * i + c] + change.offset[c], 0, 255));
}

}  // namespace palimpsest::data
