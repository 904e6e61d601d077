#pragma once

#include "palimpsest/data/class_set.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// What all layouts with one label per pixel have in common: pairs of an image and a label, and the meaning
/// of the numbers in a label.
namespace palimpsest::data::layouts {

/// The meaning of the bytes of a label file.
struct LabelIds {
  std::array<int64_t, 256> train_ids;  ///< a class, ClassSet::kVoid or ClassSet::kNoClass
  std::string allowed;                 ///< for messages: "0 to 10 and 255"
  std::string remedy;                  ///< the way out of a number without a class
};

/// Ids that are the classes themselves: 0 to classes - 1, and the ignore id.
LabelIds plain_ids(int64_t classes, int64_t ignore_id);
/// The official ids of a published data set.
LabelIds official_ids(const ClassSet& set, const std::string& name);

/// Throws Error(kUsage) if void pixels cannot have this ignore id: labels are bytes, and it must be no class.
void check_ignore_id(const LabelIds& ids, int64_t ignore_id);

/// Replaces each id of a u8 (H, W) label by its train id, and void by `ignore_id`, in place. Throws
/// Error(kData) with file, first place and number of pixels, if an id has no class; and as check_ignore_id
/// does.
void map_to_train_ids(at::Tensor& label, const LabelIds& ids, int64_t ignore_id,
                      const std::filesystem::path& path);

/// What is wrong with a file of a split.
struct Fault {
  enum class Kind {
    kExample,  ///< an image has no label, or a list names an image that is not there
    kLabel,    ///< a label has no image
    kName      ///< two images have one label, which may be that of either
  };
  Kind kind;
  std::string text;       ///< one line
  std::size_t image = 0;  ///< kExample: its position
};

/// The images of a split and their labels.
struct LabeledFiles {
  std::vector<std::filesystem::path> images;
  std::vector<std::filesystem::path> labels;   ///< one per image; empty: the split has none
  std::vector<std::filesystem::path> skipped;  ///< files beside them that are not read
  std::vector<Fault> faults;
  int64_t label_count = 0;  ///< labels that are there, also those without image
  LabelIds ids;
};

/// The names of the files of a pair: both are NAME and an ending.
struct Endings {
  std::string image;           ///< such as "_leftImg8bit.png"; "": any image file, without its suffix
  std::string label = ".png";  ///< such as "_gtFine_labelIds.png"
};

/// Adds the images of a folder, sorted by name, with the labels of theirs in another folder. Each image
/// without label, label without image, and label of two images is a fault. `layout`: the files that were
/// expected.
/// Throws Error(kData) if the folder of images is missing, or a folder is empty.
void add_folder(LabeledFiles& files, const std::filesystem::path& images, const std::filesystem::path& labels,
                const Endings& endings, const std::string& layout);

/// Adds the images that a text file lists, in its order: one name per line, with or without folder and
/// suffix. The first word of a line counts. Image and label are IMAGES/NAME.jpg and LABELS/NAME.png. A name
/// without image is a fault, and one without label if `needs_labels`. Throws Error(kData) if the list is
/// missing or empty.
void add_listed(LabeledFiles& files, const std::filesystem::path& list, const std::filesystem::path& images,
                const std::filesystem::path& labels, const std::string& layout, bool needs_labels = true);

/// Throws Error(kData) with the first fault and the number of the others. With `skip_bad` only for a fault of
/// kind kName, and if no image is without a fault.
void check_faults(const LabeledFiles& files, bool skip_bad);

}  // namespace palimpsest::data::layouts
