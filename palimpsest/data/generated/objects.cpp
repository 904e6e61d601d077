#include "palimpsest/data/generated/scene.h"

namespace palimpsest::data::generated {
namespace {

/// Draws one object as a plane that faces the camera. Coordinates are metres from the object's foot: x to the
/// right, Y up.
struct Pen {
  Canvas& canvas;
  const Street& street;
  float foot_x, foot_y, scale, z;  // pixels, pixels, pixels per metre, metres

  Pen(Canvas& canvas, const Street& street, float X, float z)
      : canvas(canvas),
        street(street),
        foot_x(street.camera.x(X, z)),
        foot_y(street.camera.y(0, z)),
        scale(street.camera.scale(z)),
        z(z) {}

  Rgb air(Rgb c) const { return mix(c, street.haze, std::min(0.6f, z / 170)); }
  float x(float metres) const { return foot_x + scale * metres; }
  float y(float metres) const { return foot_y - scale * metres; }

  void box(float x0, float Y0, float x1, float Y1, Id id, Rgb c) const {
    canvas.box(x(x0), y(Y1), x(x1), y(Y0), id, air(c));
  }
  void trapezoid(float x0, float Y0, float x1, float Y1, float inset, Id id, Rgb c) const {
    canvas.trapezoid(x(x0), y(Y1), x(x1), y(Y0), inset * scale, id, air(c));
  }
  void ellipse(float cx, float Y, float rx, float ry, Id id, Rgb c) const {
    canvas.ellipse(x(cx), y(Y), rx * scale, ry * scale, id, air(c));
  }
  /// A line of at least `least` pixels, so that distant poles are visible.
  void line(float x0, float Y0, float x1, float Y1, float width, Id id, Rgb c, float least = 1) const {
    canvas.line(x(x0), y(Y0), x(x1), y(Y1), std::max(least, width * scale), id, air(c));
  }
  void shadow(float cx, float rx, float strength) const {
    canvas.shade(x(cx), foot_y, rx * scale, 0.22f * rx * scale, strength * (1 - 0.6f * street.cloud_cover));
  }
};

void paint_tree(const Pen& pen, const Object& o) {
  const float h = o.size, crown = h * 0.30f;
  pen.shadow(0, crown, 0.35f);
  pen.trapezoid(-0.16f, 0, 0.16f, h * 0.6f, 0.05f, kTree, {0.28f, 0.22f, 0.17f});
  // Blobs of leaves around the top of the trunk, from the lowest to the highest; the sun comes from above.
  const float grain = std::max(2.0f, 0.16f * pen.scale);  // pixels per leaf cluster
  for (int blob = 0; blob < 9; ++blob) {
    const float dx = (hash(blob, 0, o.seed) - 0.5f) * 2.0f * crown;
    const float Y = h * (0.48f + 0.36f * static_cast<float>(blob) / 8 + 0.08f * hash(blob, 1, o.seed));
    const float r = crown * (0.50f + 0.35f * hash(blob, 2, o.seed));
    const float cx = pen.x(dx), cy = pen.y(Y), radius = r * pen.scale;
    pen.canvas.each_in_ellipse(cx, cy, radius, radius * 0.85f, [&](int x, int y, float d) {
      const auto px = static_cast<float>(x), py = static_cast<float>(y);
      const float leaves = noise(px / grain, py / grain, o.seed + static_cast<uint32_t>(blob));
      if (d + 0.7f * leaves > 1.15f) return;  // a ragged edge
      const float up = (cy - py) / radius;
      pen.canvas.put(x, y, kTree, pen.air(o.color * (0.55f + 0.65f * leaves + 0.25f * up)));
    });
  }
}

// The car from behind or in front. Its sides are slices, painted from the far end to the near end.
void paint_car(Canvas& canvas, const Street& s, const Object& o) {
  const bool van = o.size > 0.5f;
  const float length = van ? 4.8f : 4.2f, half = van ? 0.95f : 0.87f, ground = 0.28f;
  const float waist = van ? 1.05f : 0.86f, roof = van ? 2.0f : 1.42f;
  const float cabin_from = van ? 0.05f : 0.5f, cabin_to = van ? 3.9f : 3.1f;  // metres from the near end
  const Rgb side = o.color * (o.X * s.sun_side > 0 ? 0.80f : 0.62f), glass{0.13f, 0.15f, 0.18f},
            black{0.07f, 0.07f, 0.08f};
  const int slices = std::clamp(floor_int(s.camera.focal / o.z), 6, 40);
  for (int i = slices; i >= 0; --i) {
    const float along = length * static_cast<float>(i) / static_cast<float>(slices);
    const Pen pen(canvas, s, o.X, o.z + along);
    if (i == slices || i == slices / 2 || i == 0) pen.shadow(0, half * 1.35f, 0.75f);
    const float wheel = std::min(std::abs(along - 0.8f), std::abs(along - length + 0.8f)) / 0.34f;
    if (wheel < 1) pen.box(-half, 0, half, 0.34f + 0.34f * std::sqrt(1 - wheel * wheel), kCar, black);
    pen.box(-half, ground, half, waist, kCar, wheel < 1 ? mix(side, black, 0.25f) : side);
    if (wheel < 1) pen.box(-half, 0, half, 0.30f + 0.32f * std::sqrt(1 - wheel * wheel), kCar, black);
    if (along >= cabin_from && along <= cabin_to) {
      // Front and rear windows lean.
      const float lean =
          std::min({1.0f, (along - cabin_from) / 0.6f + (van ? 1 : 0), (cabin_to - along) / 0.9f});
      const float top = waist + (roof - waist) * std::max(0.0f, lean);
      const float inset = 0.14f * (top - waist);
      const bool pillar = std::abs(along - (cabin_from + cabin_to) / 2) < 0.08f;
      pen.trapezoid(-half, waist, half, top, inset, kCar, pillar ? side : glass);
      pen.box(-half + inset, top - 0.07f, half - inset, top, kCar, o.color * 0.95f);
    }
  }
  const Pen pen(canvas, s, o.X, o.z);
  const Rgb lamp = o.facing ? Rgb{0.92f, 0.92f, 0.85f} : Rgb{0.70f, 0.10f, 0.08f};
  pen.box(-half, ground, half, waist, kCar, o.color);
  pen.box(-half, waist - 0.10f, half, waist, kCar, o.color * 1.12f);
  pen.box(-half, ground, half, ground + 0.20f, kCar, mix(o.color, black, 0.7f));
  if (van) {
    pen.trapezoid(-half, waist, half, roof, 0.08f, kCar, o.color * 0.97f);
    pen.trapezoid(-half + 0.14f, waist + 0.12f, half - 0.14f, roof - 0.22f, 0.05f, kCar,
                  mix(glass, s.haze, 0.22f));
  }
  for (const float sign : {-1.0f, 1.0f}) {
    const float at = sign * (half - 0.16f);
    pen.box(at - 0.13f, waist - 0.32f, at + 0.13f, waist - 0.13f, kCar, lamp);
    pen.box(at - 0.14f, 0, at + 0.14f, ground, kCar, black);
  }
  if (o.facing) pen.box(-0.42f, ground + 0.22f, 0.42f, ground + 0.38f, kCar, black);
  pen.box(-0.26f, ground + 0.06f, 0.26f, ground + 0.17f, kCar, {0.88f, 0.86f, 0.72f});
}

void paint_body(const Pen& pen, const Object& o, float base, float lean, Id id) {
  const float k = o.size / 1.75f;
  const Rgb skin = mix({0.82f, 0.64f, 0.54f}, {0.40f, 0.27f, 0.20f}, hash(1, 0, o.seed));
  const Rgb hair = mix({0.10f, 0.08f, 0.07f}, {0.55f, 0.42f, 0.26f}, hash(2, 0, o.seed));
  const float head = base + 1.62f * k;
  pen.line(0, base + 0.95f * k, lean * 0.9f, base + 1.34f * k, 0.40f * k, id, o.color);
  for (const float sign : {-1.0f, 1.0f}) {
    pen.line(lean * 0.9f + sign * 0.22f * k, base + 1.36f * k, lean * 1.6f + sign * 0.25f * k,
             base + 0.88f * k, 0.11f * k, id, o.color * 0.85f);
  }
  pen.ellipse(lean, head, 0.115f * k, 0.15f * k, id, skin);
  pen.ellipse(lean, head + 0.06f * k, 0.12f * k, 0.10f * k, id, hair);
}

void paint_pedestrian(const Pen& pen, const Object& o) {
  const float k = o.size / 1.75f, stride = (o.facing ? 0.30f : 0.10f) * (0.5f + hash(3, 0, o.seed));
  const Rgb trousers = mix({0.12f, 0.13f, 0.20f}, {0.45f, 0.40f, 0.34f}, hash(4, 0, o.seed));
  pen.shadow(0, 0.5f, 0.4f);
  pen.line(-0.07f * k, 0.88f * k, -stride, 0.04f, 0.17f * k, kPedestrian, trousers);
  pen.line(0.07f * k, 0.88f * k, stride, 0.04f, 0.17f * k, kPedestrian, trousers * 0.85f);
  paint_body(pen, o, 0, 0, kPedestrian);
}

void paint_ring(const Pen& pen, float cx, float Y, float r, Rgb c) {
  pen.canvas.each_in_ellipse(pen.x(cx), pen.y(Y), r * pen.scale, r * pen.scale, [&](int x, int y, float d) {
    // The spokes of a distant wheel fill it.
    if (d > 0.66f || r * pen.scale < 4) pen.canvas.put(x, y, kBicyclist, pen.air(c));
  });
}

void paint_bicyclist(const Pen& pen, const Object& o) {
  const Rgb tyre{0.08f, 0.08f, 0.09f},
      frame = hash(5, 0, o.seed) < 0.5f ? Rgb{0.60f, 0.10f, 0.10f} : Rgb{0.15f, 0.30f, 0.50f};
  const Rgb trousers = mix({0.12f, 0.13f, 0.20f}, {0.45f, 0.40f, 0.34f}, hash(4, 0, o.seed));
  pen.shadow(0, 0.7f, 0.4f);
  if (o.facing) {  // crossing: seen from the side
    paint_ring(pen, -0.52f, 0.34f, 0.34f, tyre);
    paint_ring(pen, 0.52f, 0.34f, 0.34f, tyre);
    pen.line(-0.52f, 0.34f, -0.1f, 0.85f, 0.05f, kBicyclist, frame);
    pen.line(-0.1f, 0.85f, 0.42f, 0.85f, 0.05f, kBicyclist, frame);
    pen.line(0.05f, 0.34f, 0.42f, 0.85f, 0.05f, kBicyclist, frame);
    pen.line(0.42f, 1.0f, 0.52f, 0.34f, 0.05f, kBicyclist, frame);
    pen.line(-0.12f, 0.95f, 0.18f, 0.62f, 0.16f, kBicyclist, trousers);
    pen.line(0.18f, 0.62f, 0.05f, 0.22f, 0.13f, kBicyclist, trousers);
    paint_body(pen, o, 0.05f, 0.28f, kBicyclist);
    return;
  }
  pen.ellipse(0, 0.36f, 0.06f, 0.36f, kBicyclist, tyre);
  pen.line(-0.1f, 0.95f, -0.13f, 0.30f, 0.15f, kBicyclist, trousers);
  pen.line(0.1f, 0.95f, 0.13f, 0.45f, 0.15f, kBicyclist, trousers * 0.9f);
  pen.line(-0.28f, 1.02f, 0.28f, 1.02f, 0.05f, kBicyclist, tyre);
  paint_body(pen, o, 0.08f, 0, kBicyclist);
}

void paint_lamp(const Pen& pen, const Object& o) {
  const float out = o.X < 0 ? 1.0f : -1.0f;  // the arm reaches over the road
  pen.line(0, 0, 0, o.size, 0.14f, kPole, o.color, 2);
  pen.line(0, o.size, out * 1.2f, o.size + 0.25f, 0.09f, kPole, o.color);
  pen.ellipse(out * 1.3f, o.size + 0.2f, 0.32f, 0.11f, kPole, mix(o.color, {0.9f, 0.9f, 0.85f}, 0.4f));
}

void paint_sign(const Pen& pen, const Object& o) {
  const float h = o.size, r = 0.34f;
  const Rgb white{0.90f, 0.90f, 0.88f}, red{0.72f, 0.08f, 0.08f}, blue{0.08f, 0.22f, 0.60f},
      yellow{0.88f, 0.72f, 0.10f};
  pen.line(0, 0, 0, h, 0.08f, kPole, o.color, 2);
  switch (o.seed % 5) {
    case 0:  // a limit
      pen.ellipse(0, h, r, r, kSign, red);
      pen.ellipse(0, h, r * 0.72f, r * 0.72f, kSign, white);
      pen.box(-0.10f, h - 0.12f, 0.10f, h + 0.12f, kSign, {0.15f, 0.15f, 0.15f});
      break;
    case 1:  // a warning
      pen.trapezoid(-r * 1.1f, h - r, r * 1.1f, h + r, r * 1.1f, kSign, red);
      pen.trapezoid(-r * 0.7f, h - r * 0.75f, r * 0.7f, h + r * 0.5f, r * 0.7f, kSign, white);
      break;
    case 2:  // a command
      pen.ellipse(0, h, r, r, kSign, blue);
      pen.line(0, h - r * 0.6f, 0, h + r * 0.6f, 0.09f, kSign, white);
      break;
    case 3:  // parking
      pen.box(-r, h - r, r, h + r, kSign, white);
      pen.box(-r * 0.9f, h - r * 0.9f, r * 0.9f, h + r * 0.9f, kSign, blue);
      pen.box(-r * 0.35f, h - r * 0.6f, -r * 0.1f, h + r * 0.6f, kSign, white);
      pen.ellipse(r * 0.1f, h + r * 0.25f, r * 0.32f, r * 0.32f, kSign, white);
      break;
    default:  // directions
      pen.box(-r * 1.9f, h - r * 0.8f, r * 1.9f, h + r * 0.9f, kSign, yellow);
      pen.box(-r * 1.5f, h + r * 0.15f, r * 1.2f, h + r * 0.4f, kSign, {0.15f, 0.15f, 0.15f});
      pen.box(-r * 1.5f, h - r * 0.45f, r * 0.8f, h - r * 0.2f, kSign, {0.15f, 0.15f, 0.15f});
  }
}

void paint_traffic_light(const Pen& pen, const Object& o) {
  const float h = o.size;
  pen.line(0, 0, 0, h, 0.11f, kPole, {0.20f, 0.21f, 0.22f}, 2);
  pen.box(-0.19f, h - 0.5f, 0.19f, h + 0.5f, kSign, {0.09f, 0.10f, 0.10f});
  const Rgb lamps[] = {{0.15f, 0.85f, 0.45f}, {0.95f, 0.65f, 0.10f}, {0.90f, 0.12f, 0.10f}};
  for (uint32_t i = 0; i < 3; ++i) {
    pen.ellipse(0, h - 0.3f + 0.3f * static_cast<float>(i), 0.11f, 0.11f, kSign,
                lamps[i] * (o.seed % 3 == i ? 1.0f : 0.25f));
  }
}

// A piece of railing along the street, in perspective: each column of pixels has one z. The gaps between the
// bars have the class of the fence.
void paint_fence(Canvas& canvas, const Street& s, const Object& o) {
  const float near = std::max(o.z, 1.0f), far = o.z + o.size, height = 1.05f;
  if (far <= near) return;
  const float x0 = s.camera.x(o.X, near), x1 = s.camera.x(o.X, far);
  canvas.each(std::min(x0, x1), 0, std::max(x0, x1) + 1, 1, [&](int x, int) {
    const float offset = static_cast<float>(x) + 0.5f - s.camera.centre;
    if (offset * o.X <= 0) return;
    const float z = std::clamp(s.camera.focal * o.X / offset, near, far), pixel = z / s.camera.focal;
    const float u = (z - o.z) / 0.16f, bar = u - static_cast<float>(floor_int(u));
    const bool post = z - o.z < 0.12f;
    // Bars thinner than a pixel mix with the background.
    const float cover = std::abs(o.X) / z * 0.16f / pixel > 2 ? (bar < 0.35f ? 1.0f : 0.0f) : 0.45f;
    canvas.each(static_cast<float>(x), s.camera.y(height, z), static_cast<float>(x + 1), s.camera.y(0, z),
                [&](int, int y) {
                  const float Y = s.camera.height - (static_cast<float>(y) + 0.5f - s.camera.horizon) * pixel;
                  const bool rail = Y > height - 0.09f || (Y > 0.12f && Y < 0.20f);
                  const Rgb behind = canvas.color[static_cast<std::size_t>(y) * canvas.width + x];
                  const Rgb c = mix(o.color, s.haze, std::min(0.6f, z / 170));
                  canvas.put(x, y, kFence, mix(behind, c, rail || post ? 1.0f : cover));
                });
  });
}

}  // namespace

void paint_object(Canvas& canvas, const Street& street, const Object& object) {
  const Pen pen(canvas, street, object.X, std::max(object.z, 1.5f));
  switch (object.kind) {
    case Kind::kTree:
      return paint_tree(pen, object);
    case Kind::kCar:
      return paint_car(canvas, street, object);
    case Kind::kPedestrian:
      return paint_pedestrian(pen, object);
    case Kind::kBicyclist:
      return paint_bicyclist(pen, object);
    case Kind::kLamp:
      return paint_lamp(pen, object);
    case Kind::kSign:
      return paint_sign(pen, object);
    case Kind::kTrafficLight:
      return paint_traffic_light(pen, object);
    case Kind::kFence:
      return paint_fence(canvas, street, object);
  }
}

}  // namespace palimpsest::data::generated
