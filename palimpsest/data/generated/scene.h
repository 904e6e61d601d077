#pragma once

#include "palimpsest/base/random.h"
#include "palimpsest/data/generated/canvas.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest::data::generated {

/// A pinhole camera that looks along the street. World coordinates are metres: X to the right, Y up from the
/// ground, z ahead.
struct Camera {
  float centre, horizon;  // pixel where the street vanishes
  float focal;            // pixels
  float height;           // metres above the ground

  float scale(float z) const { return focal / z; }  ///< pixels per metre
  float x(float X, float z) const { return centre + focal * X / z; }
  float y(float Y, float z) const { return horizon + focal * (height - Y) / z; }
};

struct Building {
  int side;      // -1 left, +1 right
  float z0, z1;  // along the street
  float height;  // of the wall; a roof of `roof` metres on top
  float roof, floor_height, bay, window_width;
  bool shop;
  Rgb wall, trim, roof_color, awning;
  uint32_t seed;
};

enum class Kind { kTree, kCar, kPedestrian, kBicyclist, kLamp, kSign, kTrafficLight, kFence };

/// An object that stands on the ground. (`X`, `z`) is its foot: the near end of a car or of a piece of fence.
struct Object {
  Kind kind;
  float X, z;
  float size;  // height in metres; for a car: 0 saloon, 1 van; for a fence: its length
  Rgb color;
  uint32_t seed;
  bool facing;  // a car shows its front; a person walks sideways; a cyclist crosses the road
};

/// A description of the whole scene: plan_street draws it from the random stream, the paint_* functions paint
/// it.
struct Street {
  Camera camera;
  float road_left, road_right;  // kerbs, X
  float wall_left, wall_right;  // house fronts, X
  float end;                    // z where the houses stop
  Rgb zenith, haze, light;      // light: multiplies everything
  float cloud_cover, sun_side;  // sun_side -1 or +1: the fronts of that side are in shade
  float shadow_edge;            // X of the edge of the shade that the houses of that side cast
  float brightness, contrast, grain;
  bool crossing;
  float crossing_z;
  uint32_t seed;
  std::vector<Building> buildings;  // far to near
  std::vector<Object> objects;      // far to near
};

Street plan_street(Random& random, int height, int width);
void paint_surroundings(Canvas& canvas, const Street& street);  ///< sky, skyline, ground
void paint_building(Canvas& canvas, const Street& street, const Building& building);
void paint_object(Canvas& canvas, const Street& street, const Object& object);

/// Id of pixels on the border between classes. They have no class: in hand-drawn labels the border is
/// uncertain.
constexpr uint8_t kVoid = 255;

struct Scene {
  at::Tensor image;  ///< u8 (H, W, 3)
  at::Tensor label;  ///< u8 (H, W): Id or kVoid
};
/// Draws the scene of (seed, index), with the same bytes on every machine. 480x360 pixels take about 10 ms.
Scene draw_street(uint64_t seed, uint64_t index, int height, int width);

}  // namespace palimpsest::data::generated
