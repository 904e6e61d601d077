#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace palimpsest::data {

/// Returns the RGB colour of each class id, for pictures: (classes, 3) u8. The first eleven are CamVid's own
/// colours (data/class_set.h). No two of the first 500 ids share a colour. Throws std::invalid_argument for
/// classes < 0.
at::Tensor class_colors(int64_t classes);

/// Returns the official colours of a published data set (data/class_set.h) if it has `classes` classes and
/// colours of its own; otherwise class_colors(classes).
at::Tensor class_colors(std::string_view class_set_name, int64_t classes);

}  // namespace palimpsest::data
