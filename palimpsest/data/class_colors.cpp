#include "palimpsest/data/class_colors.h"

#include <ATen/ops/empty.h>

#include <stdexcept>
#include <string>

namespace palimpsest::data {

at::Tensor class_colors(int64_t classes) {
  if (classes < 0)
    throw std::invalid_argument("class_colors needs classes >= 0, got " + std::to_string(classes));
  constexpr uint8_t kCamVid[11][3] = {{128, 128, 128}, {128, 0, 0},   {192, 192, 128}, {128, 64, 128},
                                      {60, 40, 222},   {128, 128, 0}, {192, 128, 128}, {64, 64, 128},
                                      {64, 0, 128},    {64, 64, 0},   {0, 128, 192}};
  at::Tensor colors = at::empty({classes, 3}, at::kByte);
  auto* out = colors.mutable_data_ptr<uint8_t>();
  for (int64_t id = 0; id < classes; ++id) {
    for (int64_t c = 0; c < 3; ++c) {
      if (id < 11) {
        out[3 * id + c] = kCamVid[id][c];
        continue;
      }
      // The bits of the id are spread over the channels from the top down, as in Pascal VOC's palette, so
      // that neighbours differ most. 16 keeps the colours apart from CamVid's and from black.
      int64_t value = 16;
      for (int64_t bit = 0; bit < 3; ++bit) value ^= ((id - 10) >> (3 * bit + c) & 1) << (7 - bit);
      out[3 * id + c] = static_cast<uint8_t>(value);
    }
  }
  return colors;
}

}  // namespace palimpsest::data
