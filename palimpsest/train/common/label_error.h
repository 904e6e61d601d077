#pragma once

#include "palimpsest/base/error.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace palimpsest::train {

/// The ignore id where every label counts: no label has this value.
inline constexpr int64_t kNoIgnoreId = std::numeric_limits<int64_t>::min();

/// The error for a label that is no class.
inline Error label_error(int64_t label, int64_t classes, int64_t ignore_id) {
  if (ignore_id == kNoIgnoreId)
    return Error(ErrorKind::kData,
                 fmt::format("label {} is no class of the model (0 to {}): set the number of "
                             "classes to that of the data",
                             label, classes - 1));
  return Error(ErrorKind::kData,
               fmt::format("label {} is neither a class of the model (0 to {}) nor the ignore id {}: set the "
                           "number of classes or the ignore id to that of the data",
                           label, classes - 1, ignore_id));
}

/// Throws label_error unless `label`, as first_wrong_label returns it (train/common/count_ids.h), is NaN.
inline void refuse_wrong_label(double label, int64_t classes, int64_t ignore_id) {
  if (!std::isnan(label)) throw label_error(static_cast<int64_t>(label), classes, ignore_id);
}

}  // namespace palimpsest::train
