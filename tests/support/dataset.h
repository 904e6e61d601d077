#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/transforms.h"

namespace palimpsest::testing {

/// Samples as they lie in the files: no cropping, no flips.
inline data::TransformOptions plain(int64_t ignore_id = 255) {
  data::TransformOptions options;
  options.training = false;
  options.ignore_id = ignore_id;
  return options;
}

/// A sample whose transforms draw nothing at random.
inline data::Sample get(const data::Dataset& dataset, int64_t index) {
  Random random(0);
  return dataset.get(index, random);
}

}  // namespace palimpsest::testing
