#pragma once

#include <palimpsest/base/random.h>

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace mixed_precision {

/// Draws n faces, (n, 3, 32, 32), f32 in [-1, 1]: an oval on a plain ground, two eyes and a mouth. Position,
/// size and colours are functions of the seed.
inline torch::Tensor faces(uint64_t seed, uint64_t part, int64_t index, int64_t n) {
  constexpr int64_t kSide = 32;
  const torch::Tensor images = torch::empty({n, 3, kSide, kSide});
  auto pixels = images.accessor<float, 4>();
  palimpsest::Random random = palimpsest::Random::stream(seed, part, static_cast<uint64_t>(index));
  // 1 within the ellipse, 0 outside, with a soft edge of one pixel.
  const auto oval = [](double x, double y, double width, double height) {
    const double d = std::sqrt(x * x / (width * width) + y * y / (height * height));
    return 1 / (1 + std::exp((d - 1) * 4 * width));
  };
  for (int64_t i = 0; i < n; ++i) {
    const double left = random.uniform(13, 19), top = random.uniform(13, 19), size = random.uniform(8, 11);
    const double eye = random.uniform(0.3, 0.45), mouth = random.uniform(0.25, 0.5),
                 tone = random.uniform(-0.4, 0.3);
    double ground[3], skin[3] = {0.7 + tone, 0.4 + tone, 0.15 + tone};
    for (auto& channel : ground) channel = random.uniform(-1, 0.2);
    for (int64_t row = 0; row < kSide; ++row)
      for (int64_t column = 0; column < kSide; ++column) {
        const double x = (static_cast<double>(column) - left) / size,
                     y = (static_cast<double>(row) - top) / size;
        const double face = oval(x * size, y * size, 0.8 * size, size);
        const double dark = std::max({oval((x - eye) * size, (y + 0.25) * size, 1.4, 1.4),
                                      oval((x + eye) * size, (y + 0.25) * size, 1.4, 1.4),
                                      oval(x * size, (y - 0.45) * size, mouth * size, 1.2)});
        for (int64_t channel = 0; channel < 3; ++channel) {
          const double with_face = ground[channel] + face * (skin[channel] - ground[channel]);
          pixels[i][channel][row][column] =
              static_cast<float>(std::clamp(with_face + dark * (-0.9 - with_face), -1.0, 1.0));
        }
      }
  }
  return images;
}

}  // namespace mixed_precision
