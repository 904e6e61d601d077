#include "palimpsest/data/generated/scene.h"

namespace palimpsest::data::generated {
namespace {

// The haze of `z` metres of air.
Rgb hazed(const Street& s, Rgb c, float z) {
  return mix(c, s.haze, std::min(0.65f, z / 170));
}

void paint_sky(Canvas& canvas, const Street& s) {
  const auto w = static_cast<float>(canvas.width);
  for (int y = 0; y < canvas.height; ++y) {
    const float up = std::clamp((s.camera.horizon - static_cast<float>(y)) / s.camera.horizon, 0.0f, 1.0f);
    const Rgb clear = mix(s.haze, s.zenith, up);
    // Clouds are flat and far: the nearer the horizon, the finer.
    const float v = 6 / (0.25f + up);
    for (int x = 0; x < canvas.width; ++x) {
      const float u = (static_cast<float>(x) / w - 0.5f) * v;
      const float n = 0.65f * noise(u * 2, v * 3, s.seed) + 0.35f * noise(u * 6, v * 9, s.seed + 1);
      const float cloud = std::clamp((n - 0.75f + 0.45f * s.cloud_cover) * 4, 0.0f, 0.85f);
      canvas.put(x, y, kSky, mix(clear, Rgb{0.95f, 0.95f, 0.96f} * (0.80f + 0.2f * n), cloud));
    }
  }
}

// Roofs and tree tops behind the end of the street.
void paint_skyline(Canvas& canvas, const Street& s) {
  const float pixels = s.camera.scale(s.end * 1.3f);
  for (int x = 0; x < canvas.width; ++x) {
    const auto at = static_cast<float>(x) / pixels;  // metres
    const int house = floor_int(at / 11);
    const bool trees = hash(house, 1, s.seed) < 0.4f;
    const float height = trees ? 4 + 5 * noise(at / 2.5f, 0, s.seed) + 1.5f * noise(at * 2, 1, s.seed)
                               : 4 + 9 * hash(house, 2, s.seed);
    const float top = s.camera.y(height, s.end * 1.3f), bottom = s.camera.y(0, s.end * 1.3f);
    canvas.each(static_cast<float>(x), top, static_cast<float>(x + 1), bottom + 1, [&](int, int y) {
      const float grain = noise(at * 2, static_cast<float>(y) / pixels * 2, s.seed + 3);
      const Rgb c = trees ? Rgb{0.26f, 0.36f, 0.18f} * (0.7f + 0.6f * grain)
                          : Rgb{0.55f, 0.50f, 0.46f} * (0.8f + 0.3f * hash(house, 3, s.seed) + 0.1f * grain);
      canvas.put(x, y, trees ? kTree : kBuilding, hazed(s, c, s.end * 1.3f));
    });
  }
}

struct Ground {
  Id id;
  Rgb color;
};

Ground ground_at(const Street& s, float X, float z, float pixel) {
  // Texture finer than the ground that a pixel covers vanishes.
  const float fine = std::min(1.0f, 0.08f / pixel), coarse = std::min(1.0f, 0.6f / pixel);
  const float grain = (noise(X * 14, z * 14, s.seed) - 0.5f) * fine;
  const float patches = (noise(X * 1.3f, z * 0.6f, s.seed + 5) - 0.5f) * coarse;
  if (X >= s.road_left && X <= s.road_right) {
    Rgb c = Rgb{0.36f, 0.36f, 0.37f} * (1 + 0.35f * grain + 0.22f * patches);
    const float middle = (s.road_left + s.road_right) / 2, line = std::max(0.12f, pixel);
    const float phase = z / 6 - static_cast<float>(floor_int(z / 6));
    const bool dash = std::abs(X - middle) < line / 2 && phase < 0.5f;
    const bool edge = std::min(X - s.road_left, s.road_right - X) < 0.45f &&
                      std::min(X - s.road_left, s.road_right - X) > 0.3f;
    const float across = (X - s.road_left) / 1.0f;
    const bool stripe = s.crossing && z > s.crossing_z && z < s.crossing_z + 3 &&
                        across - static_cast<float>(floor_int(across)) < 0.5f;
    const bool near_crossing = s.crossing && z > s.crossing_z - 1 && z < s.crossing_z + 4;
    if (stripe || (!near_crossing && (dash || (edge && s.seed % 3 == 0)))) {
      c = mix(c, {0.86f, 0.86f, 0.83f}, 0.75f + 0.4f * patches);
    }
    return {kRoad, c};
  }
  const float kerb = X < s.road_left ? s.road_left - X : X - s.road_right;
  if (X >= s.wall_left && X <= s.wall_right) {
    if (kerb < 0.16f) return {kPavement, Rgb{0.66f, 0.65f, 0.63f} * (1 + 0.2f * grain)};
    // Slabs with dark joints.
    const float slab = 0.6f, u = X / slab, v = z / slab;
    const bool joint =
        u - static_cast<float>(floor_int(u)) < 0.08f || v - static_cast<float>(floor_int(v)) < 0.08f;
    const float tone = 0.12f * (hash(floor_int(u), floor_int(v), s.seed) - 0.5f) * coarse;
    const Rgb base = s.seed % 2 ? Rgb{0.56f, 0.53f, 0.50f} : Rgb{0.60f, 0.52f, 0.46f};
    return {kPavement,
            base * ((1 + tone + 0.25f * grain + 0.15f * patches) * (joint ? 1 - 0.25f * fine : 1))};
  }
  const float blades = 0.5f * grain + 0.5f * patches;
  // Grass: CamVid's eleven classes count vegetation as tree.
  return {kTree, Rgb{0.30f, 0.40f, 0.17f} * (1 + blades)};
}

void paint_ground(Canvas& canvas, const Street& s) {
  const int first = std::max(0, floor_int(s.camera.horizon) + 1);
  for (int y = first; y < canvas.height; ++y) {
    const float z = s.camera.focal * s.camera.height / (static_cast<float>(y) + 0.5f - s.camera.horizon);
    if (z > s.end * 1.3f) continue;
    const float pixel = z / s.camera.focal;  // metres across
    for (int x = 0; x < canvas.width; ++x) {
      const float X = (static_cast<float>(x) + 0.5f - s.camera.centre) * pixel;
      const Ground g = ground_at(s, X, z, pixel);
      const bool shaded = (X - s.shadow_edge) * s.sun_side > 0.8f * (noise(z * 0.3f, 0, s.seed + 7) - 0.5f);
      const float shadow = shaded ? 0.62f + 0.3f * s.cloud_cover : 1.0f;
      canvas.put(x, y, g.id, hazed(s, g.color * shadow, z));
    }
  }
}

// The wall of `b` at `u` metres from its near end and Y above the ground.
Rgb wall_at(const Building& b, const Street& s, float u, float Y, float pixel) {
  const float fine = std::min(1.0f, 0.1f / pixel);
  if (Y > b.height) {
    const float row = Y / 0.3f - static_cast<float>(floor_int(Y / 0.3f));
    return b.roof_color * (1 - 0.2f * row * fine);
  }
  if (Y > b.height - 0.45f) return b.trim;
  const int floor = floor_int(Y / b.floor_height), bay = floor_int(u / b.bay);
  const float fy = Y / b.floor_height - static_cast<float>(floor), fu = u / b.bay - static_cast<float>(bay);
  const float tone = hash(bay, floor, b.seed);
  const auto glass = [&](float up) { return mix({0.12f, 0.14f, 0.17f}, s.haze, 0.12f + 0.5f * tone * up); };
  const float texture = (noise(u * 4, Y * 12, b.seed) - 0.5f) * 0.22f * fine +
                        (noise(u * 0.4f, Y * 0.4f, b.seed + 1) - 0.5f) * 0.16f;
  const Rgb plain = b.wall * (1 + texture);
  if (floor == 0 && b.shop) {
    if (fy > 0.80f) return b.awning;
    if (fy < 0.14f || fu < 0.06f || fu > 0.94f) return b.trim * 0.7f;
    return glass(fy * 0.6f);
  }
  if (floor == 0 && bay % 3 == static_cast<int>(b.seed % 3)) {  // a door
    if (fu > 0.34f && fu < 0.66f && fy < 0.68f) return b.awning * (fu > 0.38f && fu < 0.62f ? 0.8f : 1.2f);
    return plain;
  }
  const float in = std::abs(fu - 0.5f), half = b.window_width / 2;
  if (in < half + 0.03f && fy > 0.26f && fy < 0.82f) {
    if (in > half - 0.02f || fy < 0.30f || fy > 0.79f) return b.trim;
    if (in < 0.012f || std::abs(fy - 0.58f) < 0.012f) return b.trim * 0.9f;  // glazing bars
    return tone > 0.93f ? Rgb{0.85f, 0.75f, 0.50f} : glass((fy - 0.26f) * 1.6f);
  }
  return plain;
}

}  // namespace

void paint_building(Canvas& canvas, const Street& s, const Building& b) {
  const float wall = b.side < 0 ? s.wall_left : s.wall_right, out = static_cast<float>(b.side);
  const float near = std::max(b.z0, 1.0f);
  const float lit = static_cast<float>(b.side) == s.sun_side ? 0.70f + 0.2f * s.cloud_cover : 1.06f;
  // The end that faces the camera: visible where the nearer house leaves a gap.
  if (b.z0 > 1) {
    const float edge = s.camera.x(wall, b.z0), far = s.camera.x(wall + out * 9, b.z0),
                pixel = b.z0 / s.camera.focal;
    canvas.each(std::min(edge, far), s.camera.y(b.height, b.z0), std::max(edge, far), s.camera.y(0, b.z0),
                [&](int x, int y) {
                  const float u = std::abs(static_cast<float>(x) + 0.5f - edge) * pixel;
                  const float Y = s.camera.height - (static_cast<float>(y) + 0.5f - s.camera.horizon) * pixel;
                  const float texture =
                      (noise(u * 4, Y * 12, b.seed + 2) - 0.5f) * 0.2f * std::min(1.0f, 0.1f / pixel);
                  canvas.put(x, y, kBuilding, hazed(s, b.wall * ((1 + texture) * 0.84f), b.z0));
                });
  }
  // The front, column by column: a column is one z.
  const float x_near = s.camera.x(wall, near), x_far = s.camera.x(wall, b.z1);
  const float top = s.camera.y(b.height + b.roof, near), bottom = s.camera.y(0, near);
  const int left = std::max(0, floor_int(std::min(x_near, x_far) + 0.5f));
  const int right = std::min(static_cast<float>(canvas.width), std::max(x_near, x_far) + 0.5f);
  for (int x = left; x < right; ++x) {
    const float offset = static_cast<float>(x) + 0.5f - s.camera.centre;
    if (offset * out <= 0) continue;
    const float z = std::clamp(s.camera.focal * wall / offset, near, b.z1), pixel = z / s.camera.focal;
    canvas.each(static_cast<float>(x), std::max(top, s.camera.y(b.height + b.roof, z)),
                static_cast<float>(x + 1), std::min(bottom, s.camera.y(0, z)), [&](int, int y) {
                  const float Y = s.camera.height - (static_cast<float>(y) + 0.5f - s.camera.horizon) * pixel;
                  // Light fades at the ground.
                  const float foot = Y < 0.6f ? 0.75f + 0.25f * std::max(0.0f, Y) / 0.6f : 1;
                  canvas.put(x, y, kBuilding, hazed(s, wall_at(b, s, z - b.z0, Y, pixel) * (lit * foot), z));
                });
  }
}

void paint_surroundings(Canvas& canvas, const Street& street) {
  paint_sky(canvas, street);
  paint_skyline(canvas, street);
  paint_ground(canvas, street);
}

}  // namespace palimpsest::data::generated
