#include "palimpsest/data/segmentation_folder.h"

#include "palimpsest/base/error.h"
#include "palimpsest/data/files.h"
#include "palimpsest/data/identity.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/image.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

namespace palimpsest::data {
namespace {

namespace fs = std::filesystem;

std::string size_text(const at::Tensor& image) {
  return std::to_string(image.size(1)) + "x" + std::to_string(image.size(0));
}

std::vector<std::string> read_class_names(const fs::path& root, int64_t classes) {
  std::vector<std::string> names;
  const fs::path file = root / "classes.txt";
  if (!is_there(file)) {
    for (int64_t i = 0; i < classes; ++i) names.push_back("class " + std::to_string(i));
    return names;
  }
  std::istringstream lines(io::read_file(file));
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    check_class_name(line, file.string());
    names.push_back(line);
  }
  if (static_cast<int64_t>(names.size()) != classes) {
    throw Error(ErrorKind::kData, "'" + file.string() + "' names " + std::to_string(names.size()) +
                                      " classes, " + std::to_string(classes) +
                                      " were asked for: give one name per line, or remove the file");
  }
  return names;
}

class SegmentationFolder : public Dataset {
 public:
  SegmentationFolder(const fs::path& root, const std::string& split, int64_t classes,
                     const TransformOptions& transform)
      : classes_(classes), transform_(transform) {
    check_transform(transform);
    if (classes < 1) {
      throw Error(ErrorKind::kUsage,
                  "a segmentation data set needs at least 1 class, got " + std::to_string(classes));
    }
    const fs::path labels = root / (split + "annot");
    const std::string layout =
        "images ROOT/" + split + "/NAME.jpg (or .png) with labels ROOT/" + split + "annot/NAME.png";
    images_ = list_images(root / split, layout, &skipped_);
    std::map<fs::path, fs::path>
        image_of;  // by label: a.jpg and a.png share a.png, and a.k.png sorts between them
    for (const fs::path& image : images_) {
      labels_.push_back(labels / image.stem().concat(".png"));
      if (!is_there(labels_.back())) {
        throw Error(ErrorKind::kData, "image '" + image.string() + "' has no label: '" +
                                          labels_.back().string() + "' does not exist; expected " + layout);
      }
      const auto [other, is_new] = image_of.emplace(labels_.back(), image);
      if (!is_new) {
        throw Error(ErrorKind::kData, "image '" + image.string() + "' and '" + other->second.string() +
                                          "' would share one label: rename or remove one of them");
      }
    }
    check_every_label_has_its_image(labels, layout);
    names_ = read_class_names(root, classes);
  }

  int64_t size() const override { return static_cast<int64_t>(images_.size()); }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string identity() const override { return files_identity({images_, labels_}, images_.size()); }

  std::vector<fs::path> skipped() const override { return skipped_; }

  Sample get(int64_t index, Random& random) const override {
    const fs::path &image_path = images_.at(index), &label_path = labels_.at(index);
    const at::Tensor image = read_image(image_path, transform_), label = io::read_label(label_path);
    if (image.size(0) != label.size(0) || image.size(1) != label.size(1)) {
      throw Error(ErrorKind::kData, "image '" + image_path.string() + "' has " + size_text(image) +
                                        " pixels, its label '" + label_path.string() + "' has " +
                                        size_text(label) + ": they must be the same" +
                                        orientation_hint(image, label));
    }
    check_ids(label, label_path);
    const View view = choose_view(image.size(0), image.size(1), transform_, random, image_path.string());
    return {view_image(image, view, transform_), view_label(label, view, transform_.ignore_id),
            image_path.string()};
  }

 private:
  /// A label that was drawn on the pixels as they are stored does not fit a photo that is turned upright.
  std::string orientation_hint(const at::Tensor& image, const at::Tensor& label) const {
    const bool turned = image.size(0) == label.size(1) && image.size(1) == label.size(0);
    if (!turned || !transform_.exif_orientation) return "";
    return "; if the image is a photo with an Exif orientation, --no-exif-orientation reads it as it is "
           "stored";
  }

  // Otherwise a lost or renamed image would silently be missing from the training.
  void check_every_label_has_its_image(const fs::path& folder, const std::string& layout) {
    const std::set<fs::path> known(labels_.begin(), labels_.end());
    for (const fs::path& label : list_images(folder, layout, &skipped_)) {
      if (known.contains(label)) continue;
      throw Error(ErrorKind::kData,
                  "label '" + label.string() + "' has no image of its name (missing, or a link to " +
                      "nowhere); expected " + layout + ": restore the image or remove the label");
    }
  }

  // Checks the whole label and not the crop, so that an error shows in the first epoch, whatever the crop.
  void check_ids(const at::Tensor& label, const fs::path& path) const {
    const auto* ids = label.const_data_ptr<uint8_t>();
    const auto* end = ids + label.numel();
    const auto* bad =
        std::find_if(ids, end, [&](uint8_t id) { return id >= classes_ && id != transform_.ignore_id; });
    if (bad == end) return;
    throw Error(ErrorKind::kData, "label '" + path.string() + "' has class id " + std::to_string(*bad) +
                                      " at row " + std::to_string((bad - ids) / label.size(1)) + ", column " +
                                      std::to_string((bad - ids) % label.size(1)) + "; allowed are 0 to " +
                                      std::to_string(classes_ - 1) + " and the ignore id " +
                                      std::to_string(transform_.ignore_id) +
                                      ": correct the label, the number of classes or the ignore id");
  }

  int64_t classes_;
  TransformOptions transform_;
  std::vector<fs::path> images_, labels_, skipped_;
  std::vector<std::string> names_;
};

}  // namespace

std::shared_ptr<Dataset> segmentation_folder(const std::string& root, const std::string& split,
                                             int64_t classes, const TransformOptions& transform) {
  return std::make_shared<SegmentationFolder>(root, split, classes, transform);
}

}  // namespace palimpsest::data
