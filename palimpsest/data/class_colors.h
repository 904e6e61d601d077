#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace palimpsest::data {

/// RGB colour of each class id, for pictures: (classes, 3) u8. The first eleven are CamVid's own (Sky,
/// Building, Pole, Road, Pavement, Tree, SignSymbol, Fence, Car, Pedestrian, Bicyclist). No two of 500 ids
/// share a colour. Throws std::invalid_argument for classes < 0.
at::Tensor class_colors(int64_t classes);

}  // namespace palimpsest::data
