#pragma once

#include "palimpsest/base/random.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::data {

/// One training example. Before the transforms: u8 (H, W, 3). After: f32 (3, H, W), normalized.
struct Sample {
  at::Tensor image;
  at::Tensor target;  ///< segmentation: i64 (H, W) class ids, ignore id for void; classification: i64 scalar;
                      ///< undefined where there is no truth (image_files)
  std::string name;   ///< for messages and for `predict`: the file, or "generated/17"
};

/// A list of examples. `get` is const and thread-safe: loader workers call it at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// The example at `index` in [0, size()). `random` is the example's own stream for this epoch.
  virtual Sample get(int64_t index, Random& random) const = 0;
  virtual const std::vector<std::string>& class_names()
      const = 0;  ///< "class 3" style names where none are known
};

/// How an example is made of an image (data/transforms.h says it step by step). Values out of range throw
/// Error(kUsage) when the data set is made.
struct TransformOptions {
  bool training = true;  ///< false: no randomness, no crop unless asked; only normalization
  int64_t crop = 0;      ///< side of the square crop, pixels; 0: the whole image
  double scale_min = 1,
         scale_max = 1;           ///< training only: image and label are enlarged by a factor drawn from here
  double flip_probability = 0.5;  ///< training only
  bool pad = true;  ///< pad an image smaller than the crop (mean colour, ignore id); false: an error
  int64_t ignore_id = 255;
  std::array<double, 3> mean{0.485, 0.456, 0.406}, std{0.229, 0.224, 0.225};  ///< of RGB in [0, 1]
};

/// ROOT/SPLIT/NAME.jpg|png with ROOT/SPLITannot/NAME.png, sorted by name. Ids must be < classes or equal
/// ignore_id. ROOT/classes.txt, where there is one, names the classes, one a line. Missing folder, empty
/// folder, missing label, label without image: Error(kData) at once; the rest (unreadable, sizes differ, id
/// out of range) when the example is read. A crop that does not fit while pad is false is Error(kUsage).
std::shared_ptr<Dataset> segmentation_folder(const std::string& root, const std::string& split,
                                             int64_t classes, const TransformOptions& transform);
/// ROOT/SPLIT/CLASS/NAME.jpg|png; classes are the sorted folder names. Errors as above; an empty class is
/// one, too.
std::shared_ptr<Dataset> image_folder(const std::string& root, const std::string& split,
                                      const TransformOptions& transform);
/// The images of a folder (sorted by name), or a single file; no targets, no class names.
std::shared_ptr<Dataset> image_files(const std::string& path, const TransformOptions& transform);
/// A street-like scene drawn from (seed, index) alone: sky, buildings, road, pavement, trees, cars, people,
/// poles, with textures, and void pixels along object borders. `size` images of height x width, both at
/// least 16. The classes are CamVid's eleven (street_class_names). The ignore id must not be one of them.
std::shared_ptr<Dataset> generated_streets(int64_t size, int64_t height, int64_t width, uint64_t seed,
                                           const TransformOptions& transform);

/// Sky, Building, Pole, Road, Pavement, Tree, SignSymbol, Fence, Car, Pedestrian, Bicyclist: CamVid's, in its
/// order.
const std::vector<std::string>& street_class_names();
/// RGB colour of each class id, for pictures: (classes, 3) u8. The first eleven are CamVid's own, the others
/// distinct.
at::Tensor class_colors(int64_t classes);

}  // namespace palimpsest::data
