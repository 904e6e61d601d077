#include "palimpsest/data/layouts/labeled_files.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/data/files.h"
#include "palimpsest/io/atomic_file.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <unordered_map>

namespace palimpsest::data::layouts {
namespace {

namespace fs = std::filesystem;

/// Returns "0 to 33 and 255".
std::string ranges_text(const std::array<int64_t, 256>& train_ids) {
  std::vector<std::string> ranges;
  for (int64_t id = 0; id < 256; ++id) {
    if (train_ids[id] == ClassSet::kNoClass) continue;
    int64_t last = id;
    while (last + 1 < 256 && train_ids[last + 1] != ClassSet::kNoClass) ++last;
    ranges.push_back(std::to_string(id) + (last > id ? " to " + std::to_string(last) : ""));
    id = last;
  }
  std::string text;
  for (std::size_t i = 0; i < ranges.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranges.size() ? " and " : ", ") + ranges[i];
  return text;
}

std::string base_name(const fs::path& path, const std::string& ending) {
  if (ending.empty()) return path.stem().string();
  const std::string name = path.filename().string();
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : "";
}

std::string no_label(const fs::path& image, const fs::path& label, const std::string& layout) {
  fs::path matlab = label;
  if (is_there(matlab.replace_extension(".mat")))
    return "label '" + matlab.string() + "' is a MATLAB file: convert its variable S to an 8-bit PNG '" +
           label.filename().string() + "' (docs/data.md)";
  return "image '" + image.string() + "' has no label: '" + label.string() + "' does not exist; expected " +
         layout;
}

}  // namespace

LabelIds plain_ids(int64_t classes, int64_t ignore_id) {
  LabelIds ids;
  for (int64_t id = 0; id < 256; ++id) ids.train_ids[id] = id < classes ? id : ClassSet::kNoClass;
  if (ignore_id >= 0 && ignore_id < 256) ids.train_ids[ignore_id] = ClassSet::kVoid;
  ids.allowed = "0 to " + std::to_string(classes - 1) + " and the ignore id " + std::to_string(ignore_id);
  ids.remedy = "correct the label, the number of classes or the ignore id";
  return ids;
}

LabelIds official_ids(const ClassSet& set, const std::string& name) {
  LabelIds ids;
  ids.train_ids.fill(ClassSet::kNoClass);
  std::copy(set.train_ids.begin(), set.train_ids.end(), ids.train_ids.begin());
  ids.allowed = ranges_text(ids.train_ids) + ", the ids of " + name;
  ids.remedy = "correct the label, or use the label files of " + name;
  return ids;
}

void check_ignore_id(const LabelIds& ids, int64_t ignore_id) {
  const auto has = [&](int64_t train_id) {
    return std::find(ids.train_ids.begin(), ids.train_ids.end(), train_id) != ids.train_ids.end();
  };
  if (!has(ClassSet::kVoid)) return;
  if (ignore_id < 0 || ignore_id > 255)
    throw Error(ErrorKind::kUsage, "the ignore id of labels with void pixels must be in [0, 255], got " +
                                       std::to_string(ignore_id) + ": use 255");
  if (has(ignore_id))
    throw Error(ErrorKind::kUsage, "the ignore id must be no class of the labels, got the class " +
                                       std::to_string(ignore_id) + ": use 255");
}

void map_to_train_ids(at::Tensor& label, const LabelIds& ids, int64_t ignore_id, const fs::path& path) {
  check_ignore_id(ids, ignore_id);
  std::array<uint8_t, 256> target{};
  std::array<bool, 256> has_class{};
  for (int64_t id = 0; id < 256; ++id) {
    const int64_t train_id = ids.train_ids[id];
    has_class[id] = train_id != ClassSet::kNoClass;
    target[id] = static_cast<uint8_t>(train_id == ClassSet::kVoid ? ignore_id : train_id);
  }
  auto* pixels = label.mutable_data_ptr<uint8_t>();
  int64_t others = 0, first = 0, first_id = 0;
  for (int64_t i = 0; i < label.numel(); ++i) {
    const uint8_t id = pixels[i];
    if (!has_class[id] && others++ == 0) {
      first = i;
      first_id = id;
    }
    pixels[i] = target[id];
  }
  if (others == 0) return;
  throw Error(ErrorKind::kData, "label '" + path.string() + "' has class id " + std::to_string(first_id) +
                                    " at row " + std::to_string(first / label.size(1)) + ", column " +
                                    std::to_string(first % label.size(1)) + ", the first of " +
                                    std::to_string(others) + (others == 1 ? " pixel" : " pixels") +
                                    " without a class; allowed are " + ids.allowed + ": " + ids.remedy);
}

void add_folder(LabeledFiles& files, const fs::path& images, const fs::path& labels, const Endings& endings,
                const std::string& layout) {
  std::map<fs::path, fs::path> image_of;  // by label: a.jpg and a.png share a.png
  for (const fs::path& image : list_images(images, layout, &files.skipped)) {
    const std::string base = base_name(image, endings.image);
    if (base.empty()) {
      files.skipped.push_back(image);
      continue;
    }
    files.images.push_back(image);
    files.labels.push_back(labels / (base + endings.label));
    if (!is_there(files.labels.back())) {
      files.faults.push_back(
          {Fault::Kind::kExample, no_label(image, files.labels.back(), layout), files.images.size() - 1});
      continue;
    }
    const auto [other, is_new] = image_of.emplace(files.labels.back(), image);
    if (is_new) continue;
    files.faults.push_back({Fault::Kind::kName, "image '" + image.string() + "' and '" +
                                                    other->second.string() +
                                                    "' would share one label: rename or remove one of them"});
  }
  // Otherwise a lost or renamed image would silently be missing from the training.
  if (!is_there(labels)) return;  // each image is a fault already
  std::vector<fs::path> foreign;  // label pictures of other kinds, such as *_color.png
  for (const fs::path& label : list_images(labels, layout, &foreign)) {
    const bool is_label = endings.label == ".png" || !base_name(label, endings.label).empty();
    if (!is_label) continue;
    ++files.label_count;
    if (image_of.contains(label)) continue;
    files.faults.push_back(
        {Fault::Kind::kLabel, "label '" + label.string() +
                                  "' has no image of its name (missing, or a link to nowhere); expected " +
                                  layout + ": restore the image or remove the label"});
  }
  if (endings.image.empty()) files.skipped.insert(files.skipped.end(), foreign.begin(), foreign.end());
}

void add_listed(LabeledFiles& files, const fs::path& list, const fs::path& images, const fs::path& labels,
                const std::string& layout, bool needs_labels) {
  if (!is_there(list))
    throw Error(ErrorKind::kData, "the list '" + list.string() + "' does not exist; expected " + layout);
  const std::size_t before = files.images.size();
  std::istringstream lines(without_byte_order_mark(io::read_file(list)));
  int64_t number = 0;
  std::unordered_map<std::string, int64_t> line_of;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::string word;
    if (!(std::istringstream(line) >> word)) continue;
    if (std::any_of(word.begin(), word.end(), [](unsigned char c) { return c < ' '; }))
      throw Error(ErrorKind::kData, "the list '" + list.string() + "' has a control character in line " +
                                        std::to_string(number) + ": restore the list; expected " + layout);
    const std::string name = fs::path(word).stem().string();  // a list names no file of another folder
    if (const auto [earlier, fresh] = line_of.emplace(name, number); !fresh)
      throw Error(ErrorKind::kData, "the list '" + list.string() + "' has '" + shortened(name, 100) +
                                        "' in line " + std::to_string(earlier->second) +
                                        " and again in line " + std::to_string(number) +
                                        ": it would count twice; remove one");
    files.images.push_back(images / (name + ".jpg"));
    files.labels.push_back(labels / (name + ".png"));
    const std::size_t position = files.images.size() - 1;
    if (!is_there(files.images.back()))
      files.faults.push_back({Fault::Kind::kExample,
                              "image '" + files.images.back().string() + "' does not exist, but '" +
                                  list.string() + "' lists it: restore the image or remove its line",
                              position});
    if (is_there(files.labels.back()))
      ++files.label_count;
    else if (needs_labels)
      files.faults.push_back(
          {Fault::Kind::kExample, no_label(files.images.back(), files.labels.back(), layout), position});
  }
  if (files.images.size() == before)
    throw Error(ErrorKind::kData, "the list '" + list.string() + "' names no image; expected " + layout);
}

void check_faults(const LabeledFiles& files, bool skip_bad) {
  if (files.faults.empty()) return;
  const Fault* fault = &files.faults.front();
  std::string none_left;
  if (skip_bad) {
    std::set<std::size_t> bad;
    fault = nullptr;
    for (const Fault& one : files.faults) {
      if (one.kind == Fault::Kind::kName && !fault) fault = &one;
      if (one.kind == Fault::Kind::kExample) bad.insert(one.image);
    }
    if (!fault && bad.size() < files.images.size()) return;
    if (!fault) none_left = "no image can be used: ";
    if (!fault) fault = &files.faults.front();
  }
  const std::size_t more = files.faults.size() - 1;
  throw Error(ErrorKind::kData,
              none_left + fault->text +
                  (more == 0 ? ""
                             : " (and " + std::to_string(more) + (more == 1 ? " fault" : " faults") +
                                   " more: palimpsest data check lists them)"));
}

}  // namespace palimpsest::data::layouts
