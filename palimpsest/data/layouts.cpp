#include "palimpsest/data/layouts.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/data/class_set.h"
#include "palimpsest/data/files.h"
#include "palimpsest/data/image_folder.h"
#include "palimpsest/data/layouts/images.h"
#include "palimpsest/data/layouts/labeled_pixels.h"
#include "palimpsest/data/layouts/pixels.h"

#include <algorithm>
#include <system_error>

namespace palimpsest::data {
namespace {

namespace fs = std::filesystem;

std::vector<Layout> make_layouts() {
  return {
      {"cityscapes",
       true,
       {"leftImg8bit"},
       "images ROOT/leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with labels ROOT/gtFine/SPLIT/CITY/"
       "*_gtFine_labelIds.png (or _labelTrainIds.png; gtCoarse if coarse)",
       {{"train", "", 2975}, {"val", "", 500}, {"test", "", 1525, false}, {"train_extra", "", 19998}}},
      {"cocostuff10k",
       true,
       {"imageLists"},
       "a list ROOT/imageLists/SPLIT.txt, images ROOT/images/NAME.jpg and labels ROOT/annotations/NAME.png, "
       "converted from .mat",
       {{"train", "", 9000}, {"test", "val", 1000}}},
      {"cocostuff164k",
       true,
       {"images/train2017", "images/val2017", "train2017", "val2017"},
       "images ROOT/SPLIT/*.jpg (or ROOT/images/SPLIT) with labels ROOT/stuffthingmaps/SPLIT/*.png (or "
       "ROOT/annotations/SPLIT)",
       {{"train2017", "train", 118287}, {"val2017", "val", 5000}}},
      {"vistas",
       true,
       {"training/images", "validation/images"},
       "images ROOT/SPLIT/images/*.jpg with labels ROOT/SPLIT/labels/*.png (or ROOT/SPLIT/v1.2/labels)",
       {{"training", "train", 18000}, {"validation", "val", 2000}, {"testing", "test", 5000, false}}},
      {"voc",
       true,
       {"ImageSets/Segmentation"},
       "a list ROOT/ImageSets/Segmentation/SPLIT.txt, images ROOT/JPEGImages/NAME.jpg and labels "
       "ROOT/SegmentationClass/NAME.png (train_aug: ROOT/SegmentationClassAug)",
       {{"train", "", 1464},
        {"val", "", 1449},
        {"trainval", "", 2913},
        {"test", "", 1456, false},
        {"train_aug", "trainaug", 10582}}},
      {"ade20k",
       true,
       {"annotations/training", "annotations/validation"},
       "images ROOT/images/SPLIT/*.jpg with labels ROOT/annotations/SPLIT/*.png",
       {{"training", "train", 20210}, {"validation", "val", 2000}}},
      {"cifar10",
       false,
       {"data_batch_1.bin", "test_batch.bin"},
       "the binary files ROOT/data_batch_1.bin to data_batch_5.bin and test_batch.bin",
       {{"train", "", 50000}, {"test", "val", 10000}}},
      {"cifar100",
       false,
       {"train.bin", "test.bin"},
       "the binary files ROOT/train.bin and test.bin",
       {{"train", "", 50000}, {"test", "val", 10000}}},
      {"imagenet",
       false,
       {"train", "val"},
       "images ROOT/SPLIT/nXXXXXXXX/*.JPEG, or ROOT/val/*.JPEG with the files "
       "ILSVRC2012_validation_ground_truth.txt and map_clsloc.txt of the development kit",
       {{"train", "", 1281167}, {"val", "", 50000}}},
      {"camvid",
       true,
       {"trainannot", "valannot"},
       "images ROOT/SPLIT/NAME.jpg (or .png) with labels ROOT/SPLITannot/NAME.png",
       {{"train", "", 367}, {"val", "", 101}, {"test", "", 233}}},
  };
}

/// Returns the folder above or below `root` that is a root, or "".
fs::path root_nearby(const Layout& layout, const fs::path& root) {
  std::error_code ignored;
  const fs::path normal = fs::absolute(root, ignored).lexically_normal();
  fs::path above = (normal / "..").lexically_normal();
  if (is_root(layout, above)) return above;
  std::vector<fs::path> below;
  for (fs::directory_iterator entry(root, ignored); !ignored && entry != fs::directory_iterator();
       entry.increment(ignored))
    if (entry->is_directory(ignored) && is_root(layout, entry->path())) below.push_back(entry->path());
  return below.empty() ? fs::path() : *std::min_element(below.begin(), below.end());
}

}  // namespace

std::span<const Layout> published_layouts() {
  static const std::vector<Layout> all = make_layouts();
  return all;
}

const Layout* find_layout(std::string_view kind) {
  const auto all = published_layouts();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Layout& l) { return l.kind == kind; });
  return found == all.end() ? nullptr : &*found;
}

const Split& find_split(const Layout& layout, const std::string& name) {
  std::vector<std::string> names;
  for (const Split& split : layout.splits) {
    if (split.name == name || (!name.empty() && split.other_name == name)) return split;
    names.push_back(split.name);
  }
  throw Error(ErrorKind::kUsage, unknown_name_message("split of " + layout.kind, name, names));
}

bool is_root(const Layout& layout, const fs::path& root) {
  std::error_code ignored;  // a folder that cannot be read is none
  return std::any_of(layout.markers.begin(), layout.markers.end(),
                     [&](const std::string& marker) { return fs::exists(root / marker, ignored); });
}

void check_root(const Layout& layout, const fs::path& root) {
  if (is_root(layout, root)) return;
  std::string markers;
  for (const std::string& marker : layout.markers) markers += (markers.empty() ? "" : " nor ") + marker;
  const fs::path nearby = root_nearby(layout, root);
  throw Error(ErrorKind::kData,
              "'" + root.string() + "' is not the folder of " + layout.kind + ": it has no " + markers +
                  (nearby.empty() ? "; expected " + layout.expected
                                  : ", but '" + nearby.string() + "' has: give that folder"));
}

std::shared_ptr<Dataset> open_layout(const Layout& layout, const std::string& root, const std::string& name,
                                     const std::string& annotations, const TransformOptions& transform,
                                     bool skip_bad) {
  check_transform(transform);
  const Split& split = find_split(layout, name);
  check_root(layout, root);
  if (layout.kind == "imagenet") return classified_images(layouts::find_imagenet(root, split), transform);
  if (!layout.labels_pixels)
    return layouts::cifar_images(layouts::find_cifar(layout, root, split), transform);
  layouts::LabeledFiles files = layouts::find_labeled_files(layout, root, split, annotations);
  if (files.labels.empty())
    throw Error(ErrorKind::kUsage, "the labels of the split " + split.name + " of " + layout.kind +
                                       " are not published: predict takes its images, train and eval do not");
  return layouts::labeled_pixels(std::move(files), class_set(layout.kind)->names, transform, skip_bad);
}

}  // namespace palimpsest::data
