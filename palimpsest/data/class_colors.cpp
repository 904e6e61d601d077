#include "palimpsest/data/class_colors.h"

#include "palimpsest/data/class_set.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace palimpsest::data {

at::Tensor class_colors(int64_t classes) {
  if (classes < 0)
    throw std::invalid_argument("class_colors needs classes >= 0, got " + std::to_string(classes));
  const auto& camvid = class_set("camvid")->colors;
  const auto known = static_cast<int64_t>(camvid.size());
  at::Tensor colors = at::empty({classes, 3}, at::kByte);
  auto* out = colors.mutable_data_ptr<uint8_t>();
  for (int64_t id = 0; id < classes; ++id) {
    for (int64_t c = 0; c < 3; ++c) {
      if (id < known) {
        out[3 * id + c] = camvid[id][c];
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

at::Tensor class_colors(std::string_view class_set_name, int64_t classes) {
  const ClassSet* set = class_set(class_set_name);
  if (!set || static_cast<int64_t>(set->colors.size()) != classes) return class_colors(classes);
  at::Tensor colors = at::empty({classes, 3}, at::kByte);
  auto* out = colors.mutable_data_ptr<uint8_t>();
  for (const auto& color : set->colors) out = std::copy(color.begin(), color.end(), out);
  return colors;
}

}  // namespace palimpsest::data
