#pragma once

#include "palimpsest/base/random.h"
#include "palimpsest/data/streets/canvas.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest::data::streets {

/// A pinhole camera that looks along the street. The world is in metres: X to the right, Y up from the
/// ground, z ahead.
struct Camera {
  float centre, horizon;  // pixel where the street vanishes
  float focal;            // pixels
  float height;           // metres above the ground

  float scale(float z) const { return focal / z; }  ///< pixels a metre
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

/// Something that stands on the ground; `X`, `z` is its foot (the near end of a car, the near end of a piece
/// of fence).
struct Object {
  Kind kind;
  float X, z;
  float size;  // height in metres; a car: 0 saloon, 1 van; a fence: its length
  Rgb color;
  uint32_t seed;
  bool facing;  // cars: we see the front; people: walking sideways; cyclists: crossing
};

/// Everything that is drawn, by numbers: made by plan_street from the random stream, painted by paint_*.
struct Street {
  Camera camera;
  float road_left, road_right;  // kerbs, X
  float wall_left, wall_right;  // house fronts, X
  float end;                    // z where the houses stop
  Rgb zenith, haze, light;      // light: multiplies everything
  float cloud_cover, sun_side;  // sun_side -1 or +1: that side's fronts are in shade
  float shadow_edge;            // X to which the houses on that side shade the ground
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

/// Id of pixels on the border between classes: no class, as in hand-drawn labels, where the border is
/// uncertain.
constexpr uint8_t kVoid = 255;

struct Scene {
  at::Tensor image;  ///< u8 (H, W, 3)
  at::Tensor label;  ///< u8 (H, W): Id or kVoid
};
/// The scene of (seed, index): the same bytes every time, on every machine. About 10 ms for 480x360.
Scene draw_street(uint64_t seed, uint64_t index, int height, int width);

}  // namespace palimpsest::data::streets
