#include "palimpsest/data/generated/scene.h"

namespace palimpsest::data::generated {
namespace {

/// Random draws in float.
struct Draw {
  Random& random;
  float operator()(float low, float high) { return static_cast<float>(random.uniform(low, high)); }
  bool chance(float probability) { return (*this)(0, 1) < probability; }
  uint32_t seed() { return static_cast<uint32_t>(random.next()); }
  template <std::size_t N>
  Rgb pick(const Rgb (&colors)[N]) {
    const Rgb c = colors[random.below(N)];
    return {c.r + (*this)(-0.06f, 0.06f), c.g + (*this)(-0.06f, 0.06f), c.b + (*this)(-0.06f, 0.06f)};
  }
};

constexpr Rgb kWalls[] = {{0.60f, 0.36f, 0.28f}, {0.52f, 0.30f, 0.24f}, {0.78f, 0.72f, 0.60f},
                          {0.70f, 0.68f, 0.66f}, {0.85f, 0.82f, 0.76f}, {0.76f, 0.62f, 0.42f},
                          {0.56f, 0.58f, 0.60f}, {0.66f, 0.58f, 0.52f}};
constexpr Rgb kRoofs[] = {{0.35f, 0.22f, 0.18f}, {0.28f, 0.28f, 0.30f}, {0.42f, 0.26f, 0.20f}};
constexpr Rgb kAwnings[] = {
    {0.60f, 0.12f, 0.12f}, {0.10f, 0.30f, 0.20f}, {0.12f, 0.20f, 0.45f}, {0.80f, 0.75f, 0.60f}};
constexpr Rgb kPaints[] = {{0.75f, 0.75f, 0.77f}, {0.12f, 0.12f, 0.13f}, {0.40f, 0.42f, 0.45f},
                           {0.60f, 0.10f, 0.10f}, {0.12f, 0.20f, 0.42f}, {0.86f, 0.86f, 0.86f},
                           {0.15f, 0.30f, 0.22f}, {0.60f, 0.50f, 0.20f}};
constexpr Rgb kClothes[] = {{0.15f, 0.15f, 0.18f}, {0.20f, 0.25f, 0.45f}, {0.55f, 0.15f, 0.15f},
                            {0.70f, 0.68f, 0.62f}, {0.25f, 0.35f, 0.25f}, {0.75f, 0.55f, 0.20f},
                            {0.45f, 0.40f, 0.38f}};
constexpr Rgb kLeaves[] = {
    {0.24f, 0.36f, 0.14f}, {0.32f, 0.42f, 0.18f}, {0.18f, 0.30f, 0.14f}, {0.42f, 0.40f, 0.16f}};

constexpr Rgb kIron{0.25f, 0.27f, 0.28f}, kWood{0.48f, 0.36f, 0.25f};

void plan_light(Street& s, Draw& draw) {
  s.cloud_cover = draw(0, 1);
  const float warm = draw(0, 1);  // noon to late afternoon
  s.zenith = mix({0.36f, 0.56f, 0.86f}, {0.68f, 0.72f, 0.78f}, s.cloud_cover);
  s.haze = mix(mix({0.80f, 0.87f, 0.93f}, {0.95f, 0.84f, 0.70f}, warm * (1 - s.cloud_cover)),
               {0.84f, 0.86f, 0.88f}, s.cloud_cover);
  s.light = mix({1.0f, 1.0f, 1.02f}, {1.06f, 0.97f, 0.86f}, warm * (1 - s.cloud_cover));
  s.sun_side = draw.chance(0.5f) ? -1.0f : 1.0f;
  const float wall = s.sun_side < 0 ? s.wall_left : s.wall_right;
  s.shadow_edge = wall - s.sun_side * draw(2, 11);
  s.brightness = draw(0.72f, 1.12f);
  s.contrast = draw(0.85f, 1.15f);
  s.grain = draw(0.01f, 0.035f);
}

// Adds it in pieces, so that each piece is sorted by its own distance.
void plan_garden_fence(Street& s, Draw& draw, float X, float from, float to) {
  constexpr float kPiece = 2.5f;
  const Rgb color = draw.chance(0.5f) ? kIron : kWood;
  const uint32_t seed = draw.seed();
  for (float z = from; z < to; z += kPiece) {
    s.objects.push_back({Kind::kFence, X, z, std::min(kPiece, to - z), color, seed, false});
  }
}

void plan_buildings(Street& s, Draw& draw) {
  for (const int side : {-1, 1}) {
    const bool open = draw.chance(0.25f);  // a side with more gardens than houses
    for (float z = draw(-6, 3); z < s.end;) {
      const float length = draw(7, 20);
      Building b{};
      b.side = side;
      b.z0 = z;
      b.z1 = std::min(z + length, s.end);
      b.floor_height = draw(2.9f, 3.7f);
      b.height = b.floor_height * static_cast<float>(2 + draw.random.below(4)) + 0.6f;
      b.roof = draw.chance(0.6f) ? draw(0.8f, 2.2f) : 0;
      b.bay = draw(1.9f, 3.6f);
      b.window_width = draw(0.40f, 0.66f);
      b.shop = draw.chance(0.45f);
      b.wall = draw.pick(kWalls);
      b.trim = mix(b.wall, draw.chance(0.7f) ? Rgb{0.92f, 0.90f, 0.86f} : Rgb{0.25f, 0.24f, 0.24f}, 0.7f);
      b.roof_color = draw.pick(kRoofs);
      b.awning = draw.pick(kAwnings);
      b.seed = draw.seed();
      s.buildings.push_back(b);
      z = b.z1;
      if (!draw.chance(open ? 0.9f : 0.3f)) continue;
      const float gap = open ? draw(8, 22) : draw(4, 10);
      if (draw.chance(0.7f)) plan_garden_fence(s, draw, side < 0 ? s.wall_left : s.wall_right, z, z + gap);
      z += gap;
    }
  }
  std::stable_sort(s.buildings.begin(), s.buildings.end(),
                   [](const Building& a, const Building& b) { return a.z0 > b.z0; });
}

void plan_row(Street& s, Draw& draw, Kind kind, float X, float from, float step_low, float step_high,
              float share) {
  for (float z = from + draw(0, step_high); z < s.end; z += draw(step_low, step_high)) {
    if (!draw.chance(share)) continue;
    Object o{kind, X, z, 0, {}, draw.seed(), false};
    switch (kind) {
      case Kind::kTree:
        o.size = draw(4.5f, 10);
        o.color = draw.pick(kLeaves);
        o.X += draw(-0.4f, 0.4f);
        break;
      case Kind::kCar:
        o.size = draw.chance(0.25f) ? 1.0f : 0.0f;
        o.color = draw.pick(kPaints);
        o.X += draw(-0.15f, 0.15f);
        break;
      case Kind::kFence:
        o.size = step_low;
        o.color = draw.chance(0.5f) ? kIron : kWood;
        break;
      default:
        o.size = draw(5.0f, 8.0f);
        o.color = draw.chance(0.6f) ? Rgb{0.35f, 0.36f, 0.37f} : Rgb{0.22f, 0.26f, 0.24f};
    }
    s.objects.push_back(o);
  }
}

void plan_objects(Street& s, Draw& draw) {
  for (const int side : {-1, 1}) {
    const float out = static_cast<float>(side);  // from the road outward
    const float kerb = side < 0 ? s.road_left : s.road_right, wall = side < 0 ? s.wall_left : s.wall_right;
    const float pavement = std::abs(wall - kerb);
    if (draw.chance(0.6f)) plan_row(s, draw, Kind::kTree, kerb + out * 0.9f, 7, 7, 13, 0.8f);
    // Behind the fronts: visible in the gaps.
    plan_row(s, draw, Kind::kTree, wall + out * draw(4, 8), 14, 6, 12, 0.7f);
    if (draw.chance(0.8f)) plan_row(s, draw, Kind::kLamp, kerb + out * 0.45f, 5, 14, 24, 0.9f);
    if (draw.chance(0.65f)) plan_row(s, draw, Kind::kCar, kerb - out * 1.15f, 7, 5.6f, 9, 0.7f);
    if (draw.chance(0.4f)) plan_row(s, draw, Kind::kFence, kerb + out * 0.25f, 4, 2.5f, 2.5f, 1);
    for (int64_t n = draw.random.below(3); n > 0; --n) {
      s.objects.push_back({draw.chance(0.25f) ? Kind::kTrafficLight : Kind::kSign,
                           kerb + out * draw(0.3f, 0.8f),
                           draw(6, 35),
                           draw(2.2f, 3.2f),
                           {0.5f, 0.5f, 0.52f},
                           draw.seed(),
                           false});
    }
    for (int64_t n = draw.random.below(5); n > 0; --n) {
      s.objects.push_back({Kind::kPedestrian, kerb + out * draw(0.3f, std::max(0.4f, pavement - 0.4f)),
                           5 + 35 * draw(0, 1) * draw(0.3f, 1), draw(1.5f, 1.9f), draw.pick(kClothes),
                           draw.seed(), draw.chance(0.4f)});
    }
    if (draw.chance(0.45f)) {
      s.objects.push_back({Kind::kBicyclist, kerb - out * draw(0.5f, 1.4f), draw(6, 24), draw(1.65f, 1.85f),
                           draw.pick(kClothes), draw.seed(), draw.chance(0.3f)});
    }
  }
  const float middle = (s.road_left + s.road_right) / 2, lane = (s.road_right - s.road_left) / 4;
  plan_row(s, draw, Kind::kCar, middle + lane, 10, 12, 40, 0.6f);
  const std::size_t oncoming = s.objects.size();
  plan_row(s, draw, Kind::kCar, middle - lane, 8, 10, 40, 0.6f);
  for (std::size_t i = oncoming; i < s.objects.size(); ++i) s.objects[i].facing = true;
  if (s.crossing && draw.chance(0.7f)) {
    for (int64_t n = 1 + draw.random.below(3); n > 0; --n) {
      s.objects.push_back({Kind::kPedestrian, draw(s.road_left, s.road_right),
                           s.crossing_z + draw(0.3f, 2.5f), draw(1.5f, 1.9f), draw.pick(kClothes),
                           draw.seed(), true});
    }
  }
  // Nothing drives over the people who cross.
  if (s.crossing) {
    std::erase_if(s.objects, [&](const Object& o) {
      return o.kind == Kind::kCar && o.z < s.crossing_z + 3.5f && o.z + 4.5f > s.crossing_z - 0.5f;
    });
  }
  std::stable_sort(s.objects.begin(), s.objects.end(),
                   [](const Object& a, const Object& b) { return a.z > b.z; });
}

}  // namespace

Street plan_street(Random& random, int height, int width) {
  Draw draw{random};
  Street s{};
  s.seed = draw.seed();
  const auto h = static_cast<float>(height), w = static_cast<float>(width);
  // The shorter side counts: a square crop and a wide picture show the same things at the same size.
  const float side = std::min(h * 4 / 3, w);
  s.camera = {w * draw(0.38f, 0.62f), h * draw(0.38f, 0.50f), side * draw(0.75f, 1.0f), draw(1.3f, 2.2f)};
  const float half = draw(3.2f, 5.2f), lane = half * draw(0.3f, 0.6f);  // we drive in the right lane
  s.road_left = -half - lane;
  s.road_right = half - lane;
  s.wall_left = s.road_left - draw(1.8f, 4.5f);
  s.wall_right = s.road_right + draw(1.8f, 4.5f);
  s.end = draw(45, 110);
  s.crossing = draw.chance(0.3f);
  s.crossing_z = draw(6, 18);
  plan_light(s, draw);
  plan_buildings(s, draw);
  plan_objects(s, draw);
  return s;
}

}  // namespace palimpsest::data::generated
