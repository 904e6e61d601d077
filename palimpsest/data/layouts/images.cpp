#include "palimpsest/data/layouts/images.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/data/example.h"
#include "palimpsest/data/files.h"
#include "palimpsest/data/identity.h"
#include "palimpsest/io/atomic_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace palimpsest::data::layouts {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 32, kPixels = 3 * kSide * kSide;  // of a CIFAR image, planes of R, G, B

fs::path devkit_file(const fs::path& root, const std::string& name) {
  const fs::path places[] = {root / name, root / "ILSVRC2012_devkit_t12/data" / name,
                             root / "devkit/data" / name};
  const auto* found = std::find_if(std::begin(places), std::end(places), is_there);
  if (found != std::end(places)) return *found;
  throw Error(ErrorKind::kData, "the images of '" + (root / "val").string() +
                                    "' lie in no class folders, and '" + name +
                                    "' is missing: put that file of the development kit into '" +
                                    root.string() + "', or the images into class folders");
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> all;
  for (std::string word; stream >> word;) all.push_back(word);
  return all;
}

/// Reads "n02119789 1 kit_fox" of each line: the class of each number.
std::map<std::string, std::string> read_class_map(const fs::path& path) {
  std::map<std::string, std::string> class_of;
  std::istringstream lines(io::read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const auto parts = words(line);
    if (parts.size() >= 2) class_of[parts[1]] = parts[0];
  }
  return class_of;
}

class CifarImages : public Dataset {
 public:
  CifarImages(const CifarFiles& cifar, const TransformOptions& transform)
      : files_(cifar.files), names_(cifar.names), transform_(transform), label_bytes_(cifar.label_bytes) {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      bytes_.push_back(io::read_file(files_[i]));
      const auto labels = cifar_labels(cifar, files_[i], bytes_.back());
      for (std::size_t record = 0; record < labels.size(); ++record)
        records_.push_back({i, static_cast<int64_t>(record), labels[record]});
    }
  }

  int64_t size() const override { return static_cast<int64_t>(records_.size()); }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string identity() const override { return files_identity({files_}, records_.size()); }

  std::string name(int64_t index) const override {
    const Record& record = records_.at(index);
    return files_[record.file].string() + "/" + std::to_string(record.position);
  }

  Sample get(int64_t index, Random& random) const override {
    const Record& record = records_.at(index);
    const char* planes =
        bytes_[record.file].data() + record.position * (label_bytes_ + kPixels) + label_bytes_;
    at::Tensor image = at::empty({kSide, kSide, 3}, at::kByte);
    auto* out = image.mutable_data_ptr<uint8_t>();
    for (int64_t i = 0; i < kSide * kSide; ++i)
      for (int64_t c = 0; c < 3; ++c) out[3 * i + c] = static_cast<uint8_t>(planes[c * kSide * kSide + i]);
    Sample sample = make_example(image, {}, transform_, random, name(index));
    sample.target = at::scalar_tensor(record.label, at::kLong);
    return sample;
  }

  std::vector<int64_t> class_pixels(int64_t index) const override {
    std::vector<int64_t> pixels(names_.size());
    pixels[records_.at(index).label] = 1;
    return pixels;
  }

 private:
  struct Record {
    std::size_t file;
    int64_t position, label;
  };

  std::vector<fs::path> files_;
  std::vector<std::string> names_, bytes_;
  TransformOptions transform_;
  int64_t label_bytes_;
  std::vector<Record> records_;
};

}  // namespace

ClassifiedFiles find_imagenet(const fs::path& root, const Split& split) {
  const std::string expected = "images ROOT/" + split.name + "/nXXXXXXXX/*.JPEG";
  const fs::path folder = root / split.name;
  bool is_flat = false;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && !is_flat && entry != fs::directory_iterator();
       entry.increment(error))
    is_flat = entry->path().filename().string().starts_with("ILSVRC2012_val_");
  if (!is_flat) return find_image_folder(root.string(), split.name);

  ClassifiedFiles found;
  const auto images = list_images(folder, expected + ", or all in ROOT/val", &found.skipped);
  const fs::path truth = devkit_file(root, "ILSVRC2012_validation_ground_truth.txt"),
                 map = devkit_file(root, "map_clsloc.txt");
  const auto numbers = words(io::read_file(truth));
  if (numbers.size() != images.size())
    throw Error(ErrorKind::kData, "'" + truth.string() + "' has " + std::to_string(numbers.size()) +
                                      " lines, '" + folder.string() + "' has " +
                                      std::to_string(images.size()) + " images: they must be as many");
  const auto class_of = read_class_map(map);
  std::map<std::string, std::vector<fs::path>> files;  // by class, so in the order of train's folders
  for (const auto& [number, name] : class_of) files[name];
  for (std::size_t i = 0; i < images.size(); ++i) {
    const auto it = class_of.find(numbers[i]);
    if (it == class_of.end())
      throw Error(ErrorKind::kData, "line " + std::to_string(i + 1) + " of '" + truth.string() +
                                        "' has the number '" + shortened(numbers[i], 40) + "', which '" +
                                        map.string() + "' does not name");
    files[it->second].push_back(images[i]);
  }
  for (auto& [name, of_class] : files) {
    check_class_name(name, map.string());
    found.names.push_back(name);
    found.files.push_back(std::move(of_class));
  }
  return found;
}

CifarFiles find_cifar(const Layout& layout, const fs::path& root, const Split& split) {
  const bool ten = layout.kind == "cifar10";
  CifarFiles cifar;
  cifar.label_bytes = ten ? 1 : 2;  // cifar100: the coarse label, then the fine one
  if (split.name == "train" && ten) {
    for (int i = 1; i <= 5; ++i) cifar.files.push_back(root / ("data_batch_" + std::to_string(i) + ".bin"));
  } else {
    cifar.files.push_back(root / (split.name + (ten ? "_batch.bin" : ".bin")));
  }
  for (const fs::path& file : cifar.files)
    if (!is_there(file))
      throw Error(ErrorKind::kData,
                  "data file '" + file.string() + "' does not exist; expected " + layout.expected);
  const std::size_t classes = ten ? 10 : 100;
  const fs::path names = root / (ten ? "batches.meta.txt" : "fine_label_names.txt");
  if (is_there(names)) {
    cifar.names = words(io::read_file(names));
    if (cifar.names.size() != classes)
      throw Error(ErrorKind::kData, "'" + names.string() + "' must name " + std::to_string(classes) +
                                        " classes, got " + std::to_string(cifar.names.size()));
    check_class_names(cifar.names, names.string());
  } else {
    for (std::size_t i = 0; i < classes; ++i) cifar.names.push_back("class " + std::to_string(i));
  }
  return cifar;
}

std::vector<int64_t> cifar_labels(const CifarFiles& cifar, const fs::path& file, const std::string& bytes) {
  const int64_t record = cifar.label_bytes + kPixels, size = static_cast<int64_t>(bytes.size());
  if (size == 0)
    throw Error(ErrorKind::kData, "'" + file.string() + "' is empty: it was truncated; restore it");
  if (size % record != 0)
    throw Error(ErrorKind::kData, "'" + file.string() + "' must be records of " + std::to_string(record) +
                                      " bytes, got " + std::to_string(size) + " bytes, " +
                                      std::to_string(record - size % record) +
                                      " short of a whole record: it is truncated, or of another format");
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < size / record; ++i) {
    labels.push_back(static_cast<uint8_t>(bytes[i * record + cifar.label_bytes - 1]));
    if (labels.back() >= static_cast<int64_t>(cifar.names.size()))
      throw Error(ErrorKind::kData, "'" + file.string() + "' has the label " + std::to_string(labels.back()) +
                                        " in record " + std::to_string(i) + "; allowed are 0 to " +
                                        std::to_string(cifar.names.size() - 1) +
                                        ": it is damaged, or of another format");
  }
  return labels;
}

std::shared_ptr<Dataset> cifar_images(const CifarFiles& cifar, const TransformOptions& transform) {
  check_transform(transform);
  return std::make_shared<CifarImages>(cifar, transform);
}

}  // namespace palimpsest::data::layouts
