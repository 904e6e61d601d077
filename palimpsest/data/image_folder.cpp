#include "palimpsest/data/image_folder.h"

#include "palimpsest/data/example.h"
#include "palimpsest/data/files.h"
#include "palimpsest/data/identity.h"
#include "palimpsest/io/image.h"

#include <ATen/ops/scalar_tensor.h>

#include <filesystem>

namespace palimpsest::data {
namespace {

namespace fs = std::filesystem;

/// Image files. All of them have a class, or none has.
class ImageFiles : public Dataset {
 public:
  explicit ImageFiles(const TransformOptions& transform) : transform_(transform) {
    check_transform(transform);
  }

  std::vector<fs::path> skipped() const override { return skipped_; }
  void add_skipped(const std::vector<fs::path>& files) {
    skipped_.insert(skipped_.end(), files.begin(), files.end());
  }

  void add_class(std::string name, std::vector<fs::path> files) {
    classes_.resize(files_.size() + files.size(), static_cast<int64_t>(names_.size()));
    names_.push_back(std::move(name));
    add_unlabeled(std::move(files));
  }
  void add_unlabeled(std::vector<fs::path> files) {
    files_.insert(files_.end(), std::make_move_iterator(files.begin()), std::make_move_iterator(files.end()));
  }

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string name(int64_t index) const override { return files_.at(index).string(); }
  std::string identity() const override { return files_identity({files_}, files_.size()); }

  Sample get(int64_t index, Random& random) const override {
    const fs::path& path = files_.at(index);
    Sample sample = make_example(open_image(path, transform_), {}, transform_, random, name(index));
    if (!classes_.empty()) sample.target = at::scalar_tensor(classes_[index], at::kLong);
    return sample;
  }

  std::vector<int64_t> class_pixels(int64_t index) const override {
    std::vector<int64_t> pixels(names_.size());
    if (!classes_.empty()) pixels[classes_.at(index)] = 1;
    return pixels;
  }

 private:
  TransformOptions transform_;
  std::vector<fs::path> files_, skipped_;
  std::vector<int64_t> classes_;  // one per file; empty when unlabeled
  std::vector<std::string> names_;
};

}  // namespace

ClassifiedFiles find_image_folder(const std::string& root, const std::string& split) {
  const std::string layout = "images ROOT/" + split + "/CLASS/NAME.jpg (or .png)";
  ClassifiedFiles found;
  for (const fs::path& folder : list_folders(fs::path(root) / split, layout, &found.skipped)) {
    check_class_name(folder.filename().string(), (fs::path(root) / split).string());
    found.names.push_back(folder.filename().string());
    found.files.push_back(list_images(folder, layout, &found.skipped));
  }
  return found;
}

std::shared_ptr<Dataset> classified_images(ClassifiedFiles files, const TransformOptions& transform) {
  auto dataset = std::make_shared<ImageFiles>(transform);
  for (std::size_t i = 0; i < files.names.size(); ++i)
    dataset->add_class(std::move(files.names[i]), std::move(files.files[i]));
  dataset->add_skipped(files.skipped);
  return dataset;
}

std::shared_ptr<Dataset> image_folder(const std::string& root, const std::string& split,
                                      const TransformOptions& transform) {
  check_transform(transform);
  return classified_images(find_image_folder(root, split), transform);
}

std::shared_ptr<Dataset> image_files(const std::string& path, const TransformOptions& transform) {
  auto dataset = std::make_shared<ImageFiles>(transform);
  std::error_code ignored;
  if (is_there(path) && !fs::is_directory(path, ignored)) {
    dataset->add_unlabeled({path});
  } else {
    std::vector<fs::path> skipped;
    dataset->add_unlabeled(list_images(path, "a folder of images, or one image file", &skipped));
    dataset->add_skipped(skipped);
  }
  return dataset;
}

}  // namespace palimpsest::data
