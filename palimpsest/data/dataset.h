#pragma once

#include "palimpsest/base/random.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest::data {

/// One training example. Before the transforms: u8 (H, W, 3). After: f32 (3, H, W), normalized.
struct Sample {
  at::Tensor image;
  /// Segmentation: i64 (H, W) class ids, with the ignore id for void pixels. Classification: i64 scalar.
  /// Undefined if no truth is known (image_files).
  at::Tensor target;
  /// For messages and for `predict`: the file, or "generated/17".
  std::string name;
};

/// A list of examples. Several loader workers call `get` at the same time, so it is const and thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// Returns the example at `index` in [0, size()). `random` is the example's own stream for this epoch.
  virtual Sample get(int64_t index, Random& random) const = 0;
  /// Returns the names of the classes, or names like "class 3" if none are known.
  virtual const std::vector<std::string>& class_names() const = 0;
  /// Returns a text that is another one for other examples, or "" if that is not known. A checkpoint holds
  /// it, and a resumed run compares it (train/trainer.h). Files: their number, names and sizes
  /// (data/identity.h).
  virtual std::string identity() const { return ""; }
  /// Returns the indices of all examples in the order of a shuffled epoch, which is a function of `random` and
  /// batch_size: by default a Fisher-Yates shuffle, whatever the batch size.
  virtual std::vector<int64_t> shuffled(Random& random, int64_t batch_size) const;
  /// Returns one line for each fault of the files for which examples were left out when the data set was
  /// opened. A data set that may not leave out any throws instead.
  virtual std::vector<std::string> faults() const { return {}; }
  /// Returns the files and folders beside the examples that the data set does not read, such as .bmp files.
  virtual std::vector<std::filesystem::path> skipped() const { return {}; }
};

}  // namespace palimpsest::data
