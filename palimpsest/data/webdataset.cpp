#include "palimpsest/data/webdataset.h"

#include "palimpsest/base/error.h"
#include "palimpsest/data/example.h"
#include "palimpsest/data/files.h"
#include "palimpsest/data/identity.h"
#include "palimpsest/data/layouts/labeled_files.h"
#include "palimpsest/data/layouts/labeled_pixels.h"
#include "palimpsest/data/webdataset/braces.h"
#include "palimpsest/data/webdataset/open_shards.h"
#include "palimpsest/data/webdataset/shard.h"
#include "palimpsest/data/webdataset/shuffle.h"
#include "palimpsest/io/image.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace palimpsest::data {
namespace {

namespace fs = std::filesystem;

/// Returns the archives of a split.
std::vector<fs::path> list_shards(const fs::path& root, const std::string& split, bool labels_pixels) {
  const auto fail = [&](const std::string& reason) {
    throw Error(ErrorKind::kData, reason + "; expected " + shards::expected_files(labels_pixels));
  };
  if (split.empty())
    throw Error(
        ErrorKind::kUsage,
        "a split of a webdataset must be a folder, a .tar file or a range of them, got '': '.' takes every "
        "shard of the folder '" +
            root.string() + "'");
  std::vector<fs::path> found;
  std::error_code error;
  if (fs::is_directory(root / split, error)) {
    found = shards::archives_in(root / split, error);
    if (error)
      fail("data folder '" + (root / split).string() + "' cannot be listed (" + error.message() + ")");
    if (found.empty()) fail("data folder '" + (root / split).string() + "' holds no .tar file");
    return found;
  }
  std::size_t missing = 0;
  fs::path first_missing;
  std::set<std::string> names;
  for (const std::string& name : shards::expand_braces(split)) {
    if (!names.insert(name).second)
      fail("shard '" + (root / name).string() + "' is given twice: name each shard once");
    found.push_back(root / name);
    if (is_there(found.back())) continue;
    if (missing++ == 0) first_missing = found.back();
  }
  if (missing > 0)
    fail("shard '" + first_missing.string() + "' does not exist" +
         (first_missing.string().find('*') == std::string::npos ? ""
                                                                : " (a range is written {000000..000146})") +
         (found.size() > 1
              ? ", one of " + std::to_string(missing) + " that are missing of " + std::to_string(found.size())
              : ""));
  return found;
}

class WebDataset : public Dataset {
 public:
  WebDataset(const fs::path& root, const std::string& split, const WebDatasetOptions& options,
             const TransformOptions& transform)
      : options_(options), transform_(transform) {
    check_transform(transform);
    const auto at_least_1 = [](const char* what, int64_t value) {
      if (value < 1)
        throw Error(ErrorKind::kUsage, std::string("a data set of shards: ") + what +
                                           " must be at least 1, got " + std::to_string(value));
    };
    at_least_1("the number of classes", options.classes);
    at_least_1("the shuffle buffer", options.shuffle_buffer);
    at_least_1("the number of streams", options.streams);
    paths_ = list_shards(root, split, options.labels_pixels);
    for (const fs::path& path : paths_) {
      shards_.push_back(shards::find_examples(path, options.labels_pixels));
      first_.push_back(first_.back() + static_cast<int64_t>(shards_.back().examples.size()));
      take_faults(shards_.back());
    }
    if (size() == 0)
      throw Error(ErrorKind::kData, "the shards '" + (root / split).string() +
                                        "' hold no example; expected " +
                                        shards::expected_files(options.labels_pixels));
    ids_ = layouts::plain_ids(options.classes, transform.ignore_id);
    names_ = layouts::class_names(root, options.classes);
  }

  int64_t size() const override { return first_.back(); }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string name(int64_t index) const override {
    const auto [shard, example] = example_at(index);
    return shard.name_of(example);
  }
  int64_t ignore_id() const override { return options_.labels_pixels ? transform_.ignore_id : -1; }
  std::string identity() const override { return files_identity({paths_}, static_cast<std::size_t>(size())); }
  std::vector<std::string> faults() const override { return faults_; }
  std::vector<int64_t> shuffled(Random& random, int64_t batch_size) const override {
    return shards::shuffled_shards(first_, {options_.shuffle_buffer, options_.streams, batch_size}, random);
  }

  Sample get(int64_t index, Random& random) const override { return get_with_class(index, -1, random); }

  Sample get_with_class(int64_t index, int64_t class_id, Random& random) const override {
    const auto [shard, example] = example_at(index);
    const std::string name = shard.name_of(example);
    const std::string label_bytes = open_.read(shard, example.label, "label of " + name);
    const io::ImageFile image(open_.read(shard, example.image, name), name, orientation_of(transform_));
    if (options_.labels_pixels)
      return make_example(image, label_of_pixels(label_bytes, image.size(), name), transform_, random, name,
                          class_id);
    const int64_t id = shards::class_of(label_bytes, options_.classes, name);
    Sample sample = make_example(image, {}, transform_, random, name);
    sample.target = at::scalar_tensor(id, at::kLong);
    return sample;
  }

  std::vector<int64_t> class_pixels(int64_t index) const override {
    const auto [shard, example] = example_at(index);
    const std::string name = shard.name_of(example);
    const std::string bytes = open_.read(shard, example.label, "label of " + name);
    std::vector<int64_t> pixels(static_cast<std::size_t>(options_.classes));
    if (!options_.labels_pixels) {
      pixels[static_cast<std::size_t>(shards::class_of(bytes, options_.classes, name))] = 1;
      return pixels;
    }
    return layouts::pixels_per_class(label_of_pixels(bytes, {}, name),
                                     static_cast<std::size_t>(options_.classes), transform_.ignore_id);
  }

 private:
  void take_faults(shards::Shard& shard) {
    if (shard.faults.empty()) return;
    if (!options_.skip_bad) throw Error(ErrorKind::kData, shard.faults.front());
    std::string fault = shard.faults.front();
    if (shard.faults.size() > 1)
      fault += "; " + std::to_string(shard.faults.size() - 1) + " more in this shard";
    faults_.push_back(std::move(fault));
    shard.faults.clear();
  }

  std::pair<const shards::Shard&, const shards::Example&> example_at(int64_t index) const {
    const auto shard_at = std::upper_bound(first_.begin(), first_.end(), index) - first_.begin() - 1;
    const shards::Shard& shard = shards_.at(shard_at);
    return {shard, shard.examples.at(index - first_[shard_at])};
  }

  /// `size`: of the image, which the label must have; none: not compared.
  at::Tensor label_of_pixels(std::string_view bytes, std::optional<io::ImageSize> size,
                             const std::string& name) const {
    at::Tensor label = io::decode_label(bytes, "label of " + name);
    const io::ImageSize label_size{label.size(0), label.size(1)};
    if (size && *size != label_size)
      throw Error(ErrorKind::kData,
                  "image '" + name + "' has " + layouts::size_text(*size) + " pixels, its label has " +
                      layouts::size_text(label_size) + ": they must be the same" +
                      layouts::orientation_hint(*size, label_size, orientation_of(transform_)));
    layouts::map_to_train_ids(label, ids_, transform_.ignore_id, "label of " + name);
    return label;
  }

  WebDatasetOptions options_;
  TransformOptions transform_;
  std::vector<fs::path> paths_;
  std::vector<shards::Shard> shards_;
  std::vector<int64_t> first_{0};  // of each shard, and behind the last one
  std::vector<std::string> names_, faults_;
  layouts::LabelIds ids_;  // of labels of pixels
  mutable shards::OpenShards open_;
};

}  // namespace

std::shared_ptr<Dataset> webdataset(const std::string& root, const std::string& split,
                                    const WebDatasetOptions& options, const TransformOptions& transform) {
  return std::make_shared<WebDataset>(root, split, options, transform);
}

}  // namespace palimpsest::data
