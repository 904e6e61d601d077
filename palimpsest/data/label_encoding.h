#pragma once

#include "palimpsest/data/class_set.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::data {

/// How the classes that a network predicts are stored in an 8-bit PNG file.
struct LabelEncoding {
  std::vector<uint8_t> values;                  ///< the byte of each class; empty: the class itself
  std::vector<std::array<uint8_t, 3>> palette;  ///< RGB of each byte; empty: a grey image
};

/// Returns the encoding of a data set's own label files. `palette`: these are palette images, in the official
/// colours; a byte that is no class is black. Throws Error(kUsage) for an official id above 255.
LabelEncoding official_encoding(const ClassSet& set, bool palette);
/// Does the same for a published data set (data/class_set.h) with `classes` classes. Files of Pascal VOC and
/// Mapillary Vistas have a palette. Throws Error(kUsage) for an unknown name and another number of classes.
LabelEncoding official_encoding(std::string_view name, int64_t classes);

/// Returns the PNG file of predicted classes, u8 (H, W). Throws std::invalid_argument for a class without a
/// byte.
std::string encode_labels(const at::Tensor& classes, const LabelEncoding& encoding);
/// Writes encode_labels(classes, encoding) as an AtomicFile (io/atomic_file.h), with its errors.
void write_labels(const std::filesystem::path& path, const at::Tensor& classes,
                  const LabelEncoding& encoding);

/// Returns the name of the file of an image's labels, "NAME.png" for "FOLDER/NAME.jpg". The servers of Pascal
/// VOC, ADE20K, COCO-Stuff and Vistas take the names of the images; that of Cityscapes takes any name that begins
/// with CITY_SEQUENCE_FRAME, as those of the images do.
std::string label_file_name(const std::filesystem::path& image);

}  // namespace palimpsest::data
