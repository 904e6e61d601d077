#pragma once

#include "palimpsest/data/dataset.h"
#include "palimpsest/data/transforms.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::data {

/// An official part of a published data set.
struct Split {
  std::string name;        ///< as the data set calls it: "training"
  std::string other_name;  ///< another name that is taken: "train"; "": none
  int64_t images = 0;      ///< as published; a smaller copy is no error
  bool has_labels = true;  ///< false: the labels are not published
};

/// A published data set as it is unpacked, one value of [data] kind. docs/data.md has a table.
struct Layout {
  std::string kind;                  ///< "cityscapes"; data/class_set.h may have its classes under this name
  bool labels_pixels;                ///< each pixel has a label; otherwise each image
  std::vector<std::string> markers;  ///< files or folders below the root: at least one of them is there
  std::string expected;              ///< the files of a split, for messages; SPLIT stands for its name
  std::vector<Split> splits;
};

/// Returns all layouts, those first whose markers no other has.
std::span<const Layout> published_layouts();
/// Returns the layout of this kind; null for any other name.
const Layout* find_layout(std::string_view kind);

/// Returns the split with this name or other name. Throws Error(kUsage) with the nearest name.
const Split& find_split(const Layout& layout, const std::string& name);

/// Returns whether a marker of the layout lies below `root`.
bool is_root(const Layout& layout, const std::filesystem::path& root);
/// Throws Error(kData) unless is_root; the message names the folder above or below `root` that is one.
void check_root(const Layout& layout, const std::filesystem::path& root);

/// Opens a split of a published data set. Labels become train ids, void becomes the ignore id, which must not
/// be a class. `annotations`: "fine" or "coarse", for cityscapes. Throws Error(kUsage) for an unknown split,
/// or one without published labels, and for an ignore id that is a class or no byte; Error(kData) at once for
/// a wrong root, missing or empty folders, an image without label or a label without image (skip_bad: as
/// segmentation_folder does); and when an example is read, for an unreadable file, for sizes that differ, or
/// for an id that the data set does not use.
///
/// Memory per worker of the loader: one image at a time, 3 bytes per pixel, and its label, 1 byte per pixel,
/// beside the two files: 88 MB for the 22 megapixels of Vistas. The CIFAR files lie in memory as a whole.
std::shared_ptr<Dataset> open_layout(const Layout& layout, const std::string& root, const std::string& split,
                                     const std::string& annotations, const TransformOptions& transform,
                                     bool skip_bad = false);

}  // namespace palimpsest::data
