#include "palimpsest/data/dataset.h"

#include <ATen/ops/empty.h>

#include <stdexcept>

namespace palimpsest::data {

const std::vector<std::string>& street_class_names() {
  static const std::vector<std::string> names{"Sky",      "Building",   "Pole",       "Road",
                                              "Pavement", "Tree",       "SignSymbol", "Fence",
                                              "Car",      "Pedestrian", "Bicyclist"};
  return names;
}

at::Tensor class_colors(int64_t classes) {
  if (classes < 0)
    throw std::invalid_argument("class_colors needs classes >= 0, got " + std::to_string(classes));
  // CamVid's palette, in the order of street_class_names().
  constexpr uint8_t kStreet[11][3] = {{128, 128, 128}, {128, 0, 0},   {192, 192, 128}, {128, 64, 128},
                                      {60, 40, 222},   {128, 128, 0}, {192, 128, 128}, {64, 64, 128},
                                      {64, 0, 128},    {64, 64, 0},   {0, 128, 192}};
  at::Tensor colors = at::empty({classes, 3}, at::kByte);
  auto* out = colors.mutable_data_ptr<uint8_t>();
  for (int64_t id = 0; id < classes; ++id) {
    for (int64_t c = 0; c < 3; ++c) {
      if (id < 11) {
        out[3 * id + c] = kStreet[id][c];
        continue;
      }
      // The bits of the id, spread over the channels from the top down, as Pascal VOC's palette does:
      // neighbours differ most, and no two of 500 ids share a colour. 16 keeps them off the street colours
      // and off black.
      int64_t value = 16;
      for (int64_t bit = 0; bit < 3; ++bit) value ^= ((id - 10) >> (3 * bit + c) & 1) << (7 - bit);
      out[3 * id + c] = static_cast<uint8_t>(value);
    }
  }
  return colors;
}

}  // namespace palimpsest::data
