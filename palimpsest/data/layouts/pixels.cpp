#include "palimpsest/data/layouts/pixels.h"

#include "palimpsest/base/error.h"
#include "palimpsest/data/files.h"
#include "palimpsest/data/layouts/labeled_pixels.h"

#include <algorithm>

namespace palimpsest::data::layouts {
namespace {

namespace fs = std::filesystem;

/// Returns the first of the folders that is there, else the first.
fs::path first_there(const std::vector<fs::path>& folders) {
  const auto found = std::find_if(folders.begin(), folders.end(), is_there);
  return found == folders.end() ? folders.front() : *found;
}

/// Adds images and labels of two folders; images alone if no labels are published and none are there.
void add_split(LabeledFiles& files, const fs::path& images, const fs::path& labels, const Endings& endings,
               const Split& split, const std::string& layout) {
  if (split.has_labels || is_there(labels)) return add_folder(files, images, labels, endings, layout);
  files.images = list_images(images, layout, &files.skipped);
}

LabeledFiles find_cityscapes(const Layout& layout, const fs::path& root, const Split& split,
                             const std::string& annotations) {
  const bool coarse = annotations == "coarse";
  if (!coarse && split.name == "train_extra")
    throw Error(ErrorKind::kUsage,
                "the split train_extra of cityscapes has coarse labels only: a training on it needs [data] "
                "annotations (--annotations) = coarse, and evaluations need fine ones");
  const std::string truth = coarse ? "gtCoarse" : "gtFine", expected = expected_files(layout, split);
  const fs::path images = split_place(layout, root, split), labels = root / truth / split.name;
  LabeledFiles files;
  files.ids = official_ids(*class_set(layout.kind), layout.kind);
  const bool without_labels = !split.has_labels && !is_there(labels);
  bool chosen = false;
  Endings endings{"_leftImg8bit.png", "_" + truth + "_labelIds.png"};
  for (const fs::path& city : list_folders(images, expected, &files.skipped)) {
    if (without_labels) {
      const auto of_city = list_images(city, expected, &files.skipped);
      files.images.insert(files.images.end(), of_city.begin(), of_city.end());
      continue;
    }
    const fs::path of_city = labels / city.filename();
    if (!chosen && is_there(of_city)) {
      // The files of train ids are made by a script of the data set, and may stand alone.
      const auto all = list_images(of_city, expected);
      const auto ends = [&](const std::string& ending) {
        return std::any_of(all.begin(), all.end(),
                           [&](const fs::path& file) { return file.string().ends_with(ending); });
      };
      const std::string train_ids = "_" + truth + "_labelTrainIds.png";
      if (!ends(endings.label) && ends(train_ids)) {
        endings.label = train_ids;
        files.ids = plain_ids(static_cast<int64_t>(class_set(layout.kind)->names.size()), 255);
      }
      chosen = true;
    }
    add_folder(files, city, of_city, endings, expected);
  }
  return files;
}

LabeledFiles find_cocostuff(const Layout& layout, const fs::path& root, const Split& split) {
  const fs::path place = split_place(layout, root, split);
  const std::string expected = expected_files(layout, split);
  LabeledFiles files;
  if (layout.kind == "cocostuff10k")
    add_listed(files, place, root / "images", root / "annotations", expected);
  else
    add_folder(files, place,
               first_there({root / "stuffthingmaps" / split.name, root / "annotations" / split.name}), {},
               expected);
  return files;
}

LabeledFiles find_voc(const Layout& layout, const fs::path& root, const Split& split) {
  const char* labels = split.name == "train_aug" ? "SegmentationClassAug" : "SegmentationClass";
  LabeledFiles files;
  add_listed(files, split_place(layout, root, split), root / "JPEGImages", root / labels,
             expected_files(layout, split), split.has_labels);
  if (!split.has_labels && files.label_count == 0) files.labels.clear();
  return files;
}

}  // namespace

std::string expected_files(const Layout& layout, const Split& split) {
  std::string text = layout.expected;
  for (std::size_t at = text.find("SPLIT"); at != std::string::npos; at = text.find("SPLIT", at))
    text.replace(at, 5, split.name);
  return text;
}

fs::path split_place(const Layout& layout, const fs::path& root, const Split& split) {
  const std::string &kind = layout.kind, &name = split.name;
  if (kind == "cityscapes") return root / "leftImg8bit" / name;
  if (kind == "cocostuff10k") return root / "imageLists" / (name + ".txt");
  if (kind == "cocostuff164k") return first_there({root / "images" / name, root / name});
  if (kind == "vistas") return root / name / "images";
  if (kind == "ade20k") return root / "images" / name;
  if (kind == "cifar10") return root / (name == "train" ? "data_batch_1.bin" : "test_batch.bin");
  if (kind == "cifar100") return root / (name + ".bin");
  if (kind != "voc") return root / name;
  const fs::path lists = root / "ImageSets/Segmentation";
  if (split.other_name.empty()) return lists / (name + ".txt");
  return first_there({lists / (name + ".txt"), lists / (split.other_name + ".txt")});
}

LabeledFiles find_labeled_files(const Layout& layout, const fs::path& root, const Split& split,
                                const std::string& annotations) {
  if (layout.kind == "cityscapes") return find_cityscapes(layout, root, split, annotations);
  const std::string expected = expected_files(layout, split);
  LabeledFiles files;
  if (layout.kind == "camvid") {
    files = find_segmentation_folder(root, split.name);
  } else if (layout.kind.starts_with("cocostuff")) {
    files = find_cocostuff(layout, root, split);
  } else if (layout.kind == "vistas") {
    // Version 1.2 came alone, and comes beside 2.0 today.
    add_split(files, split_place(layout, root, split),
              first_there({root / split.name / "labels", root / split.name / "v1.2/labels"}), {}, split,
              expected);
  } else if (layout.kind == "voc") {
    files = find_voc(layout, root, split);
  } else if (layout.kind == "ade20k") {
    add_split(files, split_place(layout, root, split), root / "annotations" / split.name, {}, split,
              expected);
  } else {
    throw Error(ErrorKind::kInternal, layout.kind + " has no label per pixel");
  }
  files.ids = official_ids(*class_set(layout.kind), layout.kind);
  return files;
}

}  // namespace palimpsest::data::layouts
