#include "palimpsest/data/segmentation_folder.h"

#include "palimpsest/base/error.h"
#include "palimpsest/data/example.h"
#include "palimpsest/data/files.h"
#include "palimpsest/data/identity.h"
#include "palimpsest/data/layouts/labeled_pixels.h"
#include "palimpsest/io/image.h"

#include <filesystem>
#include <unordered_map>
#include <utility>

namespace palimpsest::data {
namespace {

namespace fs = std::filesystem;

class LabeledPixels : public Dataset {
 public:
  LabeledPixels(layouts::LabeledFiles files, std::vector<std::string> names,
                const TransformOptions& transform)
      : files_(std::move(files)), names_(std::move(names)), transform_(transform) {
    for (const layouts::Fault& fault : files_.faults)
      if (fault.kind == layouts::Fault::Kind::kExample) bad_.emplace(fault.image, fault.text);
  }

  int64_t size() const override { return static_cast<int64_t>(files_.images.size()); }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string name(int64_t index) const override { return files_.images.at(index).string(); }
  int64_t ignore_id() const override { return transform_.ignore_id; }
  std::string identity() const override {
    return files_identity({files_.images, files_.labels}, files_.images.size());
  }
  std::vector<fs::path> skipped() const override { return files_.skipped; }
  std::vector<std::string> faults() const override {
    std::vector<std::string> faults;
    for (const layouts::Fault& fault : files_.faults)
      if (fault.kind == layouts::Fault::Kind::kLabel) faults.push_back(fault.text);
    return faults;
  }

  Sample get(int64_t index, Random& random) const override { return get_with_class(index, -1, random); }

  Sample get_with_class(int64_t index, int64_t class_id, Random& random) const override {
    check_files(index);
    const fs::path &image_path = files_.images.at(index), &label_path = files_.labels.at(index);
    const io::ImageFile image = open_image(image_path, transform_);
    at::Tensor label = io::read_label(label_path);
    check_sizes(image.size(), {label.size(0), label.size(1)}, image_path, label_path);
    // The whole label and not the crop, so that an error shows in the first epoch, whatever the crop.
    layouts::map_to_train_ids(label, files_.ids, transform_.ignore_id, label_path);
    return make_example(image, label, transform_, random, name(index), class_id);
  }

  std::vector<int64_t> class_pixels(int64_t index) const override {
    check_files(index);
    const fs::path& path = files_.labels.at(index);
    at::Tensor label = io::read_label(path);
    layouts::map_to_train_ids(label, files_.ids, transform_.ignore_id, path);
    return layouts::pixels_per_class(label, names_.size(), transform_.ignore_id);
  }

 private:
  void check_files(int64_t index) const {
    const auto bad = bad_.find(static_cast<std::size_t>(index));
    if (bad != bad_.end()) throw Error(ErrorKind::kData, bad->second);
  }

  void check_sizes(io::ImageSize image, io::ImageSize label, const fs::path& image_path,
                   const fs::path& label_path) const {
    if (image == label) return;
    throw Error(ErrorKind::kData, "image '" + image_path.string() + "' has " + layouts::size_text(image) +
                                      " pixels, its label '" + label_path.string() + "' has " +
                                      layouts::size_text(label) + ": they must be the same" +
                                      layouts::orientation_hint(image, label, orientation_of(transform_)));
  }

  layouts::LabeledFiles files_;
  std::unordered_map<std::size_t, std::string> bad_;  // the fault of an example
  std::vector<std::string> names_;
  TransformOptions transform_;
};

}  // namespace

namespace layouts {

std::string size_text(io::ImageSize size) {
  return std::to_string(size.width) + "x" + std::to_string(size.height);
}

std::string orientation_hint(io::ImageSize image, io::ImageSize label, io::Orientation orientation) {
  const bool turned = image.height == label.width && image.width == label.height;
  if (!turned || orientation == io::Orientation::kAsStored) return "";
  return "; if the image is a photo with an Exif orientation, --no-exif-orientation reads it as it is "
         "stored";
}

std::vector<int64_t> pixels_per_class(const at::Tensor& label, std::size_t classes, int64_t ignore_id) {
  std::vector<int64_t> pixels(256);
  const auto* ids = label.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < label.numel(); ++i) ++pixels[ids[i]];
  if (ignore_id >= 0 && ignore_id < 256) pixels[ignore_id] = 0;
  pixels.resize(classes);
  return pixels;
}

LabeledFiles find_segmentation_folder(const fs::path& root, const std::string& split) {
  const std::string layout =
      "images ROOT/" + split + "/NAME.jpg (or .png) with labels ROOT/" + split + "annot/NAME.png";
  LabeledFiles files;
  add_folder(files, root / split, root / (split + "annot"), {}, layout);
  return files;
}

std::vector<std::string> class_names(const fs::path& root, int64_t classes) {
  const fs::path file = root / "classes.txt";
  std::vector<std::string> names = read_class_names(root);
  if (!is_there(file))
    for (int64_t i = 0; i < classes; ++i) names.push_back("class " + std::to_string(i));
  if (static_cast<int64_t>(names.size()) != classes) {
    throw Error(ErrorKind::kData, "'" + file.string() + "' names " + std::to_string(names.size()) +
                                      " classes, " + std::to_string(classes) +
                                      " were asked for: give one name per line, or remove the file");
  }
  return names;
}

std::shared_ptr<Dataset> labeled_pixels(LabeledFiles files, std::vector<std::string> names,
                                        const TransformOptions& transform, bool skip_bad) {
  check_transform(transform);
  check_ignore_id(files.ids, transform.ignore_id);
  check_faults(files, skip_bad);
  return std::make_shared<LabeledPixels>(std::move(files), std::move(names), transform);
}

}  // namespace layouts

std::shared_ptr<Dataset> segmentation_folder(const std::string& root, const std::string& split,
                                             int64_t classes, const TransformOptions& transform,
                                             bool skip_bad) {
  check_transform(transform);
  if (classes < 1)
    throw Error(ErrorKind::kUsage,
                "a segmentation data set needs at least 1 class, got " + std::to_string(classes));
  layouts::LabeledFiles files = layouts::find_segmentation_folder(root, split);
  files.ids = layouts::plain_ids(classes, transform.ignore_id);
  layouts::check_faults(files, skip_bad);
  return layouts::labeled_pixels(std::move(files), layouts::class_names(root, classes), transform, skip_bad);
}

}  // namespace palimpsest::data
