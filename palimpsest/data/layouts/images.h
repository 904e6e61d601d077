#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/image_folder.h"
#include "palimpsest/data/layouts.h"
#include "palimpsest/data/transforms.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::data::layouts {

/// Finds the images of ImageNet. Images of `val` that lie in no class folders have the classes of the
/// development kit's ILSVRC2012_validation_ground_truth.txt: one number per image, in the order of their names.
/// map_clsloc.txt says which class a number is. Both lie in the root, in ILSVRC2012_devkit_t12/data or in
/// devkit/data. Throws Error(kData) for missing files, or a number without a class.
ClassifiedFiles find_imagenet(const std::filesystem::path& root, const Split& split);

/// A binary file of CIFAR: records of `label_bytes` labels, of which the last one counts, and 3072 pixels.
struct CifarFiles {
  std::vector<std::filesystem::path> files;
  std::vector<std::string> names;
  int64_t label_bytes = 1;
};
/// Finds the files of cifar10 or cifar100; takes the names of the classes from batches.meta.txt or
/// fine_label_names.txt if it is there. Throws Error(kData) if a file is missing.
CifarFiles find_cifar(const Layout& layout, const std::filesystem::path& root, const Split& split);
/// Returns the label of each record of a file. Throws Error(kData) for a file that is not a number of whole
/// records, and for a label without class.
std::vector<int64_t> cifar_labels(const CifarFiles& cifar, const std::filesystem::path& file,
                                  const std::string& bytes);
/// Opens the files as a data set of 32x32 images. All of them lie in memory: 154 MB for the 50,000 of training.
std::shared_ptr<Dataset> cifar_images(const CifarFiles& cifar, const TransformOptions& transform);

}  // namespace palimpsest::data::layouts
