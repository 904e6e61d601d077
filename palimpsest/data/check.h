#pragma once

#include "palimpsest/io/image.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::data {

struct CheckOptions {
  std::string
      kind;  ///< a kind of data/layouts.h, segmentation_folder, image_folder or webdataset; "": recognize it
  bool full = false;  ///< decode every file
  /// The number that the network will have: a label out of range is a fault. 0: as the data set says.
  int64_t classes = 0;
  /// The label of pixels without a class, 255 if not given; for segmentation_folder and webdataset.
  std::optional<int64_t> ignore_id = {};
  /// What becomes of the Exif orientation of photos, with `full`; for layouts of image files.
  io::Orientation orientation = io::Orientation::kUpright;
  int64_t threads = 1;  ///< that decode
  /// Is called by the threads, one at a time, with the files of a split that are done and the number of all.
  std::function<void(const std::string& split, int64_t done, int64_t all)> progress = {};
};

/// What lies in one split.
struct SplitCheck {
  std::string name;              ///< "train", or "train, coarse"
  bool labels_pixels = false;    ///< each pixel has a label; otherwise each image
  int64_t images = 0;            ///< that the folders or lists name
  int64_t labels = 0;            ///< files; of a classification data set: labels
  int64_t published_images = 0;  ///< 0: not a published data set
  bool published_labels = true;
  int64_t skipped = 0;              ///< files beside them that are not read
  std::vector<std::string> faults;  ///< one line each: what train and eval refuse

  // With `full`; width and height.
  int64_t unreadable = 0;  ///< images and labels that cannot be decoded; each is a fault, too
  std::array<int64_t, 2> smallest{}, largest{};  ///< images with the fewest and most pixels

  /// Images of each class; pixels of each class (with `full`) if each pixel has a label.
  std::vector<int64_t> class_counts;
  int64_t void_pixels = 0;
  std::map<int64_t, int64_t> ids_without_class;  ///< pixels of each id outside the mapping
};

struct DataCheck {
  std::string kind;
  bool recognized = false;               ///< CheckOptions::kind was ""
  std::string expected;                  ///< the files of a split
  std::vector<std::string> class_names;  ///< empty: unknown
  std::vector<SplitCheck> splits;        ///< those that are there
  std::vector<std::string> missing;      ///< names of published splits that are not there

  int64_t faults() const;  ///< of all splits
};

/// Looks through the data set in a folder. Faults do not end the check: the result names each. Throws
/// Error(kUsage) for an unknown kind, for `classes` that are not the number of the names that the data set brings,
/// and for an ignore id or an orientation where the layout takes none; Error(kData) if the folder is missing, has another layout, or
/// none that is known; and Error(kMemory) if the system does not start the threads.
///
/// Memory with `full`: one image and one label per thread, 4 bytes per pixel, beside the two files.
DataCheck check_data(const std::filesystem::path& root, const CheckOptions& options);

/// Returns the kind of the data set in a folder, as check_data recognizes it; "" if it has no known layout.
std::string recognized_kind(const std::filesystem::path& root);

/// Throws Error(kUsage) unless a network's number of classes is that of a data set, which `data` names; 0 of either:
/// not known.
void check_class_count(int64_t classes, int64_t of_data, const std::string& data);

/// Returns the kinds that check_data takes.
std::vector<std::string> checked_kinds();

}  // namespace palimpsest::data
