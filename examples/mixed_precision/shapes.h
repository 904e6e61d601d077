#pragma once

#include "examples/mixed_precision/boxes.h"

#include <palimpsest/base/random.h>

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace mixed_precision {

/// Pictures of one to three squares, discs and triangles of 12 to 28 pixels, which hardly overlap, on a noisy
/// ground.
struct Shapes {
  static constexpr int64_t kSide = 64, kKinds = 3;

  torch::Tensor images;  ///< (n, 3, kSide, kSide), f32 in [-128, 127], as for Caffe's networks
  std::vector<std::vector<Object>> objects;  ///< of each image

  Shapes(uint64_t seed, uint64_t part, int64_t index, int64_t n)
      : images(torch::empty({n, 3, kSide, kSide})), objects(static_cast<size_t>(n)) {
    palimpsest::Random random = palimpsest::Random::stream(seed, part, static_cast<uint64_t>(index));
    auto pixels = images.accessor<float, 4>();
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t channel = 0; channel < 3; ++channel) {
        const double ground = random.uniform(-60, 60);
        for (int64_t y = 0; y < kSide; ++y)
          for (int64_t x = 0; x < kSide; ++x)
            pixels[i][channel][y][x] = static_cast<float>(ground + random.uniform(-20, 20));
      }
      auto& mine = objects[static_cast<size_t>(i)];
      for (int64_t wanted = 1 + random.below(3), tries = 0; wanted > 0 && tries < 20; ++tries) {
        const double side = random.uniform(12, 28), x = random.uniform(0, kSide - side),
                     y = random.uniform(0, kSide - side);
        const Object object{1 + random.below(kKinds), {x, y, x + side, y + side}};
        if (std::ranges::any_of(mine,
                                [&](const Object& other) { return overlap(other.box, object.box) > 0.05; }))
          continue;
        double color[3];
        for (auto& channel : color)
          channel = random.below(2) == 0 ? random.uniform(70, 127) : random.uniform(-128, -70);
        for (int64_t row = 0; row < kSide; ++row)
          for (int64_t column = 0; column < kSide; ++column)
            if (covers(object, static_cast<double>(column) + 0.5, static_cast<double>(row) + 0.5))
              for (int64_t channel = 0; channel < 3; ++channel)
                pixels[i][channel][row][column] = static_cast<float>(color[channel]);
        mine.push_back(object);
        --wanted;
      }
    }
  }

 private:
  static bool covers(const Object& object, double x, double y) {
    const double side = object.box.x1 - object.box.x0;
    const double u = (x - object.box.x0) / side, v = (y - object.box.y0) / side;  // in the box: [0, 1)
    if (u < 0 || u >= 1 || v < 0 || v >= 1) return false;
    if (object.kind == 1) return true;
    if (object.kind == 2) return std::hypot(u - 0.5, v - 0.5) < 0.5;
    return std::abs(u - 0.5) < 0.5 * v;
  }
};

}  // namespace mixed_precision
