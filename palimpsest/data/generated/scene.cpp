#include "palimpsest/data/generated/scene.h"

#include <ATen/ops/empty.h>

namespace palimpsest::data::generated {
namespace {

// Objects on the street hide the houses; the houses hide the objects behind their fronts.
void paint(Canvas& canvas, const Street& street) {
  paint_surroundings(canvas, street);
  const auto behind = [&](const Object& o) { return o.X <= street.wall_left || o.X >= street.wall_right; };
  auto building = street.buildings.begin();
  for (const Object& object : street.objects) {
    if (!behind(object)) continue;
    for (; building != street.buildings.end() && building->z0 > object.z; ++building) {
      paint_building(canvas, street, *building);
    }
    paint_object(canvas, street, object);
  }
  for (; building != street.buildings.end(); ++building) paint_building(canvas, street, *building);
  for (const Object& object : street.objects) {
    if (!behind(object)) paint_object(canvas, street, object);
  }
}

// The camera: light, a lens that is not quite sharp, grain.
at::Tensor develop(const Canvas& canvas, const Street& s) {
  const int height = canvas.height, width = canvas.width;
  at::Tensor image = at::empty({height, width, 3}, at::kByte);
  auto* out = image.mutable_data_ptr<uint8_t>();
  const auto at = [&](int y, int x) { return canvas.color[static_cast<std::size_t>(y) * width + x]; };
  const Rgb gain = s.light * (s.brightness * s.contrast * 255);
  const float lift = 0.5f * (1 - s.contrast) * 255;
  for (int y = 0; y < height; ++y) {
    const int up = std::max(0, y - 1), down = std::min(height - 1, y + 1);
    for (int x = 0; x < width; ++x) {
      const int left = std::max(0, x - 1), right = std::min(width - 1, x + 1);
      const Rgb soft = at(y, x) * 0.6f + (at(up, x) + at(down, x) + at(y, left) + at(y, right)) * 0.1f;
      // The sum of two hashes is close enough to the bell shape of sensor noise.
      const float grain = (hash(x, y, s.seed + 11) + hash(x, y, s.seed + 12) - 1) * s.grain * 2 * 255;
      const float values[3] = {soft.r * gain.r, soft.g * gain.g, soft.b * gain.b};
      uint8_t* pixel = out + 3 * (static_cast<int64_t>(y) * width + x);
      for (int c = 0; c < 3; ++c) {
        const float value = std::clamp(values[c] + lift + grain, 0.0f, 255.0f);
        pixel[c] = static_cast<uint8_t>(value + 0.5f);  // NOLINT(bugprone-incorrect-roundings): 0 to 255
      }
    }
  }
  return image;
}

// A pixel is void if its right or lower neighbour has another class. The border is one pixel wide, so that
// poles two pixels wide remain.
at::Tensor with_void_borders(const Canvas& canvas) {
  const int height = canvas.height, width = canvas.width;
  at::Tensor label = at::empty({height, width}, at::kByte);
  auto* out = label.mutable_data_ptr<uint8_t>();
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const std::size_t i = static_cast<std::size_t>(y) * width + x;
      const uint8_t id = canvas.label[i];
      const bool border =
          (x + 1 < width && canvas.label[i + 1] != id) || (y + 1 < height && canvas.label[i + width] != id);
      out[i] = border ? kVoid : id;
    }
  }
  return label;
}

}  // namespace

Scene draw_street(uint64_t seed, uint64_t index, int height, int width) {
  Random random = Random::stream(seed, index);
  const Street street = plan_street(random, height, width);
  Canvas canvas(height, width);
  paint(canvas, street);
  return {develop(canvas, street), with_void_borders(canvas)};
}

}  // namespace palimpsest::data::generated
