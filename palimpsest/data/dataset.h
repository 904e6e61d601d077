#pragma once

#include "palimpsest/base/random.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest::data {

/// The mean and the standard deviation of RGB in [0, 1].
struct Normalization {
  std::array<double, 3> mean{0.485, 0.456, 0.406};
  std::array<double, 3> std{0.229, 0.224, 0.225};
};

/// Returns images of bytes, u8 (3, H, W) or (N, 3, H, W), as f32: (value / 255 - mean) / std. Returns images of
/// any other type as they are: they are normalized.
at::Tensor normalized(const at::Tensor& images, const Normalization& normalization);

/// One training example.
struct Sample {
  /// f32 (3, H, W), normalized; or u8 (3, H, W), to be normalized on the device where the network is.
  at::Tensor image;
  /// Segmentation: i64 (H, W) class ids, with the ignore id for void pixels; u8 beside an image of bytes.
  /// Classification: i64 scalar. Undefined if no truth is known (image_files).
  at::Tensor target;
  /// For messages and for `predict`: the file, or "generated/17".
  std::string name;
  Normalization normalization = {};  ///< of an image of bytes
};

/// A list of examples. Several loader workers call `get` at the same time, so it is const and thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// Returns the example at `index` in [0, size()). `random` is the example's own stream for this epoch.
  virtual Sample get(int64_t index, Random& random) const = 0;
  /// Returns the name of the example at `index` (Sample::name) without reading it, or "" if it is not known.
  virtual std::string name(int64_t /*index*/) const { return ""; }
  /// Returns the pixels of each class in the example at `index`, before any transform; for classification 1
  /// for its class. Returns nothing if the data set does not know them. Reads the label.
  virtual std::vector<int64_t> class_pixels(int64_t /*index*/) const { return {}; }
  /// Returns the example at `index` with a crop that shows a pixel of `class_id`, uniform among its pixels, if
  /// the example has any. A pixel alone can vanish where the image is scaled down.
  virtual Sample get_with_class(int64_t index, int64_t /*class_id*/, Random& random) const {
    return get(index, random);
  }
  /// Returns the id of the pixels in a target that have no class, or -1 if the targets have no such id.
  virtual int64_t ignore_id() const { return -1; }
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
