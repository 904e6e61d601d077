#include "palimpsest/data/generated/streets.h"

#include "palimpsest/base/error.h"
#include "palimpsest/data/example.h"
#include "palimpsest/data/generated/scene.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace palimpsest::data::generated {
namespace {

class Streets : public Dataset {
 public:
  Streets(int64_t size, int64_t height, int64_t width, uint64_t seed, const TransformOptions& transform)
      : size_(size), height_(height), width_(width), seed_(seed), transform_(transform) {
    check_transform(transform);
    const auto require = [](bool condition, const std::string& what, const std::string& got) {
      if (!condition) throw Error(ErrorKind::kUsage, "generated streets: " + what + ", got " + got);
    };
    require(size >= 1, "the number of images must be at least 1", std::to_string(size));
    require(std::min(height, width) >= 16 && std::max(height, width) <= 8192,
            "height and width must be between 16 and 8192 pixels",
            std::to_string(width) + "x" + std::to_string(height));
    const auto classes = static_cast<int64_t>(street_class_names().size());
    require(transform.ignore_id < 0 || transform.ignore_id >= classes,
            "the ignore id must not be one of the classes 0 to " + std::to_string(classes - 1),
            std::to_string(transform.ignore_id));
  }

  int64_t size() const override { return size_; }
  const std::vector<std::string>& class_names() const override { return street_class_names(); }
  std::string name(int64_t index) const override { return "generated/" + std::to_string(index); }
  int64_t ignore_id() const override { return transform_.ignore_id; }

  Sample get(int64_t index, Random& random) const override { return get_with_class(index, -1, random); }

  Sample get_with_class(int64_t index, int64_t class_id, Random& random) const override {
    const Scene scene = draw(index);
    Sample sample = make_example(scene.image, scene.label, transform_, random, name(index), class_id);
    if (transform_.ignore_id != kVoid) {
      if (sample.target.scalar_type() == at::kByte) {
        replace_void(sample.target.mutable_data_ptr<uint8_t>(), sample.target.numel());
      } else {
        replace_void(sample.target.mutable_data_ptr<int64_t>(), sample.target.numel());
      }
    }
    return sample;
  }

  std::vector<int64_t> class_pixels(int64_t index) const override {
    const at::Tensor label = draw(index).label;
    std::vector<int64_t> pixels(256);
    const auto* ids = label.const_data_ptr<uint8_t>();
    for (int64_t i = 0; i < label.numel(); ++i) ++pixels[ids[i]];
    if (transform_.ignore_id >= 0 && transform_.ignore_id < 256) pixels[transform_.ignore_id] = 0;
    pixels.resize(class_names().size());
    return pixels;
  }

 private:
  Scene draw(int64_t index) const {
    return draw_street(seed_, static_cast<uint64_t>(index), static_cast<int>(height_),
                       static_cast<int>(width_));
  }

  template <class Id>
  void replace_void(Id* ids, int64_t count) const {
    std::replace(ids, ids + count, static_cast<Id>(kVoid), static_cast<Id>(transform_.ignore_id));
  }

  int64_t size_, height_, width_;
  uint64_t seed_;
  TransformOptions transform_;
};

}  // namespace

const std::vector<std::string>& street_class_names() {
  static const std::vector<std::string> names{"Sky",      "Building",   "Pole",       "Road",
                                              "Pavement", "Tree",       "SignSymbol", "Fence",
                                              "Car",      "Pedestrian", "Bicyclist"};
  return names;
}

std::shared_ptr<Dataset> streets(int64_t size, int64_t height, int64_t width, uint64_t seed,
                                 const TransformOptions& transform) {
  return std::make_shared<Streets>(size, height, width, seed, transform);
}

}  // namespace palimpsest::data::generated
