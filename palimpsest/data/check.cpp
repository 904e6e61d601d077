#include "palimpsest/data/check.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/data/check/findings.h"
#include "palimpsest/data/check/shards.h"
#include "palimpsest/data/class_set.h"
#include "palimpsest/data/files.h"
#include "palimpsest/data/image_folder.h"
#include "palimpsest/data/layouts.h"
#include "palimpsest/data/layouts/images.h"
#include "palimpsest/data/layouts/labeled_pixels.h"
#include "palimpsest/data/layouts/pixels.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/image.h"

#include <algorithm>
#include <numeric>
#include <system_error>
#include <utility>

namespace palimpsest::data {
namespace {

namespace fs = std::filesystem;

/// Returns the folders in a folder, sorted; none if it cannot be listed.
std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code vanished;
    if (entry->is_directory(vanished) && !entry->path().filename().string().starts_with('.'))
      found.push_back(entry->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_synset(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return name.size() == 9 && name[0] == 'n' &&
         std::all_of(name.begin() + 1, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Returns the splits of a segmentation_folder: folders X beside a folder Xannot.
std::vector<std::string> annotated_folders(const fs::path& root) {
  std::vector<std::string> splits;
  std::error_code ignored;
  for (const fs::path& folder : folders_in(root))
    if (fs::is_directory(fs::path(folder).concat("annot"), ignored))
      splits.push_back(folder.filename().string());
  return splits;
}

/// Returns the splits of an image_folder: folders that hold folders.
std::vector<std::string> folders_of_folders(const fs::path& root) {
  std::vector<std::string> splits;
  for (const fs::path& folder : folders_in(root))
    if (!folders_in(folder).empty()) splits.push_back(folder.filename().string());
  return splits;
}

/// Returns whether `root` holds this data set. The markers of imagenet and camvid are those of any folder of
/// images.
bool looks_like(const Layout& layout, const fs::path& root) {
  if (!is_root(layout, root)) return false;
  if (layout.kind == "imagenet") {
    const auto train = folders_in(root / "train"), val = folders_in(root / "val");
    return std::any_of(train.begin(), train.end(), is_synset) ||
           std::any_of(val.begin(), val.end(), is_synset);
  }
  if (layout.kind != "camvid") return true;
  std::error_code ignored;
  std::string name = fs::weakly_canonical(root, ignored).filename().string();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return name.starts_with("camvid");
}

std::string recognize(const fs::path& root) {
  const std::string kind = recognized_kind(root);
  // A folder of folders is anything: a data set one folder further down is more likely.
  if (!kind.empty() && kind != "image_folder") return kind;
  std::error_code ignored;
  std::vector<fs::path> nearby = folders_in(root);
  nearby.push_back((fs::absolute(root, ignored).lexically_normal() / "..").lexically_normal());
  for (const fs::path& other : nearby) {
    const std::string found = recognized_kind(other);
    if (find_layout(found) || (kind.empty() && found == "webdataset"))
      throw Error(ErrorKind::kData, "'" + root.string() + "' is no data set, but '" + other.string() +
                                        "' looks like " + found + ": give that folder");
  }
  if (kind.empty())
    throw Error(ErrorKind::kData, "'" + root.string() +
                                      "' has none of the layouts of docs/data.md: give the folder that "
                                      "holds the splits, or name the layout with --data-kind");
  return kind;
}

void check_named_classes(const DataCheck& result, const fs::path& root, const CheckOptions& options) {
  check_class_count(options.classes, static_cast<int64_t>(result.class_names.size()),
                    result.kind + " " + root.string());
}

/// Returns the number of classes, 0 if it is not known.
int64_t class_count(const DataCheck& result, const CheckOptions& options) {
  const auto named = static_cast<int64_t>(result.class_names.size());
  return named > 0 ? named : options.classes;
}

/// Decodes the images of a split, and their labels if they have any. A file that is missing is a fault
/// already.
checks::Findings decode_all(const std::vector<fs::path>& images, const layouts::LabeledFiles* labeled,
                            const std::string& split, const CheckOptions& options) {
  const auto examine = [&](int64_t i, checks::Findings& found) {
    const auto decode = [&](const fs::path& path, const auto& read) {
      std::error_code ignored;
      return fs::exists(path, ignored) ? found.try_read(i, [&] { return read(path); }) : at::Tensor();
    };
    const at::Tensor image =
        decode(images[i], [&](const fs::path& path) { return io::read_image(path, options.orientation); });
    if (!labeled || labeled->labels.empty())
      return found.examine(i, image, images[i], {}, "", nullptr, options);
    const fs::path& path = labeled->labels[i];
    found.examine(i, image, images[i], decode(path, [](const fs::path& p) { return io::read_label(p); }),
                  path, &labeled->ids, options);
  };
  return checks::examine_all(static_cast<int64_t>(images.size()), split, options, examine);
}

void check_labeled(SplitCheck& check, const layouts::LabeledFiles& files, std::size_t classes,
                   const CheckOptions& options) {
  check.images = static_cast<int64_t>(files.images.size());
  check.labels = files.label_count;
  check.skipped = static_cast<int64_t>(files.skipped.size());
  for (const layouts::Fault& fault : files.faults) check.faults.push_back(fault.text);
  if (!options.full) return;
  const checks::Findings found = decode_all(files.images, &files, check.name, options);
  checks::add_findings(check, found);
  checks::add_pixels(check, found, files.ids, classes);
}

void check_classified(SplitCheck& check, const ClassifiedFiles& files, const CheckOptions& options) {
  std::vector<fs::path> images;
  for (const auto& of_class : files.files) {
    check.class_counts.push_back(static_cast<int64_t>(of_class.size()));
    images.insert(images.end(), of_class.begin(), of_class.end());
  }
  check.images = check.labels = static_cast<int64_t>(images.size());
  check.skipped = static_cast<int64_t>(files.skipped.size());
  if (options.full) checks::add_findings(check, decode_all(images, nullptr, check.name, options));
}

void check_cifar(SplitCheck& check, const layouts::CifarFiles& cifar) {
  check.class_counts.assign(cifar.names.size(), 0);
  for (const fs::path& file : cifar.files) {
    try {
      for (const int64_t label : layouts::cifar_labels(cifar, file, io::read_file(file)))
        ++check.class_counts[label];
    } catch (const Error& error) {
      check.faults.emplace_back(error.what());
      ++check.unreadable;
    }
  }
  check.images = check.labels =
      std::accumulate(check.class_counts.begin(), check.class_counts.end(), int64_t{0});
  if (check.images > 0) check.smallest = check.largest = {32, 32};
}

/// Notes the names of a split's classes. Those of the first split count.
void take_names(DataCheck& result, SplitCheck& check, const std::vector<std::string>& names) {
  if (result.class_names.empty()) result.class_names = names;
  if (result.class_names != names)
    check.faults.push_back("the classes of " + check.name + " (" + std::to_string(names.size()) +
                           ") must be those of " + result.splits.front().name + " (" +
                           std::to_string(result.class_names.size()) + "), in the same order");
}

void check_split(DataCheck& result, SplitCheck& check, const Layout& layout, const fs::path& root,
                 const Split& split, const std::string& annotations, const CheckOptions& options) {
  if (layout.labels_pixels) {
    check_labeled(check, layouts::find_labeled_files(layout, root, split, annotations),
                  result.class_names.size(), options);
  } else if (layout.kind == "imagenet") {
    const ClassifiedFiles files = layouts::find_imagenet(root, split);
    take_names(result, check, files.names);
    check_classified(check, files, options);
  } else {
    const auto cifar = layouts::find_cifar(layout, root, split);
    take_names(result, check, cifar.names);
    check_cifar(check, cifar);
  }
}

/// Runs `check`. An error becomes a fault of the split, but for threads that the system does not start.
template <class Check>
void add_split(DataCheck& result, SplitCheck split, const Check& check) {
  try {
    check(split);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kMemory) throw;
    split.faults.emplace_back(error.what());
  }
  result.splits.push_back(std::move(split));
}

void check_published(DataCheck& result, const Layout& layout, const fs::path& root,
                     const CheckOptions& options) {
  check_root(layout, root);
  result.expected = layout.expected;
  if (const ClassSet* set = class_set(layout.kind)) result.class_names = set->names;
  check_named_classes(result, root, options);
  for (const Split& split : layout.splits) {
    if (!is_there(layouts::split_place(layout, root, split))) {
      result.missing.push_back(split.name);
      continue;
    }
    SplitCheck check;
    check.name = split.name;
    check.labels_pixels = layout.labels_pixels;
    check.published_images = split.images;
    check.published_labels = split.has_labels;
    const auto with = [&](const std::string& annotations) {
      add_split(result, check,
                [&](SplitCheck& c) { check_split(result, c, layout, root, split, annotations, options); });
    };
    const bool has_coarse = layout.kind == "cityscapes" && is_there(root / "gtCoarse" / split.name);
    const bool has_fine = is_there(root / "gtFine" / split.name);
    if (!has_coarse || has_fine) with("fine");
    if (!has_coarse) continue;
    if (!has_fine) result.missing.push_back(split.name + ", fine");
    check.name += ", coarse";
    with("coarse");
  }
  if (result.splits.empty())
    throw Error(ErrorKind::kData,
                "'" + root.string() + "' has no split of " + layout.kind + "; expected " + layout.expected);
}

void check_folders(DataCheck& result, const fs::path& root, const CheckOptions& options) {
  const bool labels_pixels = result.kind == "segmentation_folder";
  result.expected = labels_pixels
                        ? "images ROOT/SPLIT/NAME.jpg (or .png) with labels ROOT/SPLITannot/NAME.png"
                        : "images ROOT/SPLIT/CLASS/NAME.jpg (or .png)";
  const auto splits = labels_pixels ? annotated_folders(root) : folders_of_folders(root);
  if (splits.empty())
    throw Error(ErrorKind::kData,
                "'" + root.string() + "' is no " + result.kind + "; expected " + result.expected);
  if (labels_pixels) result.class_names = read_class_names(root);
  check_named_classes(result, root, options);
  const int64_t classes = class_count(result, options);
  const int64_t ids = classes > 0 ? classes : 256;
  for (const std::string& name : splits) {
    SplitCheck check;
    check.name = name;
    check.labels_pixels = labels_pixels;
    add_split(result, check, [&](SplitCheck& c) {
      if (labels_pixels) {
        layouts::LabeledFiles files = layouts::find_segmentation_folder(root, name);
        files.ids = layouts::plain_ids(ids, options.ignore_id.value_or(255));
        check_labeled(c, files, ids, options);
      } else {
        const ClassifiedFiles files = find_image_folder(root.string(), name);
        take_names(result, c, files.names);
        check_classified(c, files, options);
      }
    });
  }
}

}  // namespace

int64_t DataCheck::faults() const {
  int64_t count = 0;
  for (const SplitCheck& split : splits) count += static_cast<int64_t>(split.faults.size());
  return count;
}

DataCheck check_data(const fs::path& root, const CheckOptions& options) {
  if (!is_there(root)) throw Error(ErrorKind::kData, "data folder '" + root.string() + "' does not exist");
  const auto kinds = checked_kinds();
  if (!options.kind.empty() && std::find(kinds.begin(), kinds.end(), options.kind) == kinds.end())
    throw Error(ErrorKind::kUsage, unknown_name_message("layout", options.kind, kinds));
  DataCheck result;
  result.recognized = options.kind.empty();
  result.kind = result.recognized ? recognize(root) : options.kind;
  if (options.ignore_id && result.kind != "segmentation_folder" && result.kind != "webdataset")
    throw Error(ErrorKind::kUsage,
                "[data] ignore_id (--ignore-id) has no effect: it needs the layout segmentation_folder or "
                "webdataset, got " +
                    result.kind);
  if (options.orientation != io::Orientation::kUpright && (!options.full || result.kind.starts_with("cifar")))
    throw Error(
        ErrorKind::kUsage,
        "[data] exif_orientation (--no-exif-orientation) has no effect: it needs --full and a layout of "
        "image files, got " +
            result.kind + (options.full ? "" : " without --full"));
  if (const Layout* layout = find_layout(result.kind)) {
    check_published(result, *layout, root, options);
  } else if (result.kind == "webdataset") {
    result.class_names = read_class_names(root);
    check_named_classes(result, root, options);
    checks::check_shards(result, root, class_count(result, options), options);
  } else {
    check_folders(result, root, options);
  }
  check_named_classes(result, root, options);  // of folders of classes
  return result;
}

void check_class_count(int64_t classes, int64_t of_data, const std::string& data) {
  if (classes > 0 && of_data > 0 && classes != of_data)
    throw Error(ErrorKind::kUsage, "[model] classes (--classes) must be the data set's " +
                                       std::to_string(of_data) + " (" + data + "), got " +
                                       std::to_string(classes));
}

std::string recognized_kind(const fs::path& root) {
  for (const Layout& layout : published_layouts())
    if (looks_like(layout, root)) return layout.kind;
  if (!annotated_folders(root).empty()) return "segmentation_folder";
  if (!folders_of_folders(root).empty()) return "image_folder";
  return checks::holds_shards(root) ? "webdataset" : "";
}

std::vector<std::string> checked_kinds() {
  std::vector<std::string> kinds{"segmentation_folder", "image_folder", "webdataset"};
  for (const Layout& layout : published_layouts()) kinds.push_back(layout.kind);
  return kinds;
}

}  // namespace palimpsest::data
