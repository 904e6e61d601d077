#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/transforms.h"
#include "palimpsest/io/image.h"

#include <ATen/ops/full.h>

#include <filesystem>

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

/// Writes a PNG file of one colour, or of one class id.
inline void put_image(const std::filesystem::path& path, int64_t height, int64_t width, int value = 100) {
  io::write_png(path, at::full({height, width, 3}, value, at::kByte));
}
inline void put_label(const std::filesystem::path& path, int64_t height, int64_t width, int id) {
  io::write_png(path, at::full({height, width}, id, at::kByte));
}

}  // namespace palimpsest::testing
