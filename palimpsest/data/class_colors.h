#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace palimpsest::data {

/// Returns the RGB colour of each class id, for pictures: (classes, 3) u8. The first eleven are CamVid's own
/// colours (Sky, Building, Pole, Road, Pavement, Tree, SignSymbol, Fence, Car, Pedestrian, Bicyclist). No two
/// of the first 500 ids share a colour. Throws std::invalid_argument for classes < 0.
at::Tensor class_colors(int64_t classes);

}  // namespace palimpsest::data
