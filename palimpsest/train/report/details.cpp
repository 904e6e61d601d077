#include "palimpsest/train/report/details.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/data/class_colors.h"
#include "palimpsest/io/safetensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace palimpsest::train {
namespace {

constexpr int64_t kLongestSide = 512;  // pixels of a stored picture
constexpr int64_t kVoid = 255;
constexpr int64_t kMostPictures = 64;  // that a file may have

std::string json_list(const std::vector<std::string>& texts) {
  auto list = nlohmann::json::array();
  for (const std::string& text : texts) list.push_back(as_utf8(text));
  return list.dump();
}

/// The checked contents of a file.
class Contents {
 public:
  explicit Contents(const std::filesystem::path& path) : path_(path), file_(io::read_safetensors(path)) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::kCheckpoint, path_.string() + ": " + what);
  }
  void check(bool condition, const std::string& requirement) const {
    if (!condition) refuse(requirement);
  }
  const std::string& text(const char* key) const {
    const auto found = file_.metadata.find(key);
    if (found == file_.metadata.end()) refuse(fmt::format("needs the metadata '{}'", key));
    return found->second;
  }
  int64_t number(const char* key) const {
    const std::string& digits = text(key);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size())
      refuse(fmt::format("the metadata '{}' must be a whole number, got '{}'", key, shortened(digits, 40)));
    return value;
  }
  std::vector<std::string> texts(const char* key) const {
    const auto json = nlohmann::json::parse(text(key), nullptr, /*allow_exceptions=*/false);
    check(json.is_array() && std::ranges::all_of(json, [](const auto& v) { return v.is_string(); }),
          fmt::format("the metadata '{}' must be a JSON list of texts", key));
    return json.get<std::vector<std::string>>();
  }
  /// Returns the tensor; undefined if there is none.
  at::Tensor find(const std::string& name) const {
    const at::Tensor* tensor = file_.find(name);
    return tensor ? *tensor : at::Tensor();
  }
  at::Tensor tensor(const std::string& name, at::ScalarType type, int64_t dimensions) const {
    const at::Tensor found = find(name);
    check(
        found.defined() && found.scalar_type() == type && found.dim() == dimensions,
        fmt::format("needs the tensor '{}' of {} with {} dimensions", name, at::toString(type), dimensions));
    return found;
  }

 private:
  const std::filesystem::path& path_;
  io::Safetensors file_;
};

/// Returns every k-th row and column of class ids.
at::Tensor smaller_ids(const at::Tensor& ids, int64_t height, int64_t width) {
  const auto places = [](int64_t from, int64_t to) {
    return at::arange(to, at::kLong).mul_(from).add_(from / 2).div_(to, "floor").clamp_max_(from - 1);
  };
  return ids.index_select(0, places(ids.size(0), height)).index_select(1, places(ids.size(1), width));
}

/// Undoes the normalization of an image, (3, H, W), and reduces it to (height, width): u8 (height, width, 3).
at::Tensor picture_of(const at::Tensor& image, const ReportOptions& options, int64_t height, int64_t width) {
  const auto per_channel = [](const std::array<double, 3>& v) {
    return at::tensor({v[0], v[1], v[2]}, at::kFloat).view({3, 1, 1});
  };
  at::Tensor rgb = image.cpu().to(at::kFloat).contiguous();
  if (height != image.size(1) || width != image.size(2)) rgb = at::adaptive_avg_pool2d(rgb, {height, width});
  rgb = rgb * per_channel(options.std) + per_channel(options.mean);
  return (rgb * 255).round().clamp(0, 255).to(at::kByte).permute({1, 2, 0}).contiguous();
}

std::string key_of(size_t picture, const char* part) {
  return fmt::format("picture.{}.{}", picture, part);
}

}  // namespace

void write_evaluation(const std::filesystem::path& path, const EvaluationDetails& details) {
  io::Safetensors file;
  std::vector<std::string> names;
  if (details.class_colors.defined()) file.tensors.emplace_back("class_colors", details.class_colors);
  if (details.confusion.defined()) file.tensors.emplace_back("confusion", details.confusion);
  for (size_t i = 0; i < details.pictures.size(); ++i) {
    const EvaluationPicture& picture = details.pictures[i];
    file.tensors.emplace_back(key_of(i, "image"), picture.image);
    file.tensors.emplace_back(key_of(i, "truth"), picture.truth);
    file.tensors.emplace_back(key_of(i, "prediction"), picture.prediction);
    names.push_back(picture.name);
  }
  file.metadata = {{"step", std::to_string(details.step)},
                   {"epoch", std::to_string(details.epoch)},
                   {"segmentation", details.segmentation ? "true" : "false"},
                   {"class_names", json_list(details.class_names)},
                   {"picture_names", json_list(names)}};
  io::write_safetensors(path, file);
}

EvaluationDetails read_evaluation(const std::filesystem::path& path) {
  const Contents file(path);
  EvaluationDetails details;
  details.step = file.number("step");
  details.epoch = file.number("epoch");
  details.segmentation = file.text("segmentation") == "true";
  details.class_names = file.texts("class_names");
  const auto classes = static_cast<int64_t>(details.class_names.size());
  details.class_colors = file.tensor("class_colors", at::kByte, 2);
  file.check(details.class_colors.sizes() == at::IntArrayRef{classes, 3},
             fmt::format("needs 3 values of class_colors for each of {} classes", classes));
  if (file.find("confusion").defined()) {
    details.confusion = file.tensor("confusion", at::kLong, 2);
    file.check(details.confusion.sizes() == at::IntArrayRef{classes, classes},
               fmt::format("confusion needs {} rows and columns, as there are classes", classes));
    file.check(classes == 0 || details.confusion.min().item<int64_t>() >= 0,
               "confusion has a negative count");
  }
  const auto names = file.texts("picture_names");
  file.check(static_cast<int64_t>(names.size()) <= kMostPictures,
             fmt::format("may have {} pictures, got {}", kMostPictures, names.size()));
  for (size_t i = 0; i < names.size(); ++i) {
    EvaluationPicture picture{names[i], file.tensor(key_of(i, "image"), at::kByte, 3), {}, {}};
    const auto type = details.segmentation ? at::kByte : at::kLong;
    const int64_t dimensions = details.segmentation ? 2 : 0;
    picture.truth = file.tensor(key_of(i, "truth"), type, dimensions);
    picture.prediction = file.tensor(key_of(i, "prediction"), type, dimensions);
    const auto image = picture.image.sizes();
    file.check(
        image[2] == 3 && image[0] > 0 && image[1] > 0 && image[0] <= kLongestSide && image[1] <= kLongestSide,
        fmt::format("'{}' must be an image of RGB with 1 to {} pixels a side", key_of(i, "image"),
                    kLongestSide));
    for (const at::Tensor& ids : {picture.truth, picture.prediction})
      file.check(!details.segmentation || ids.sizes() == image.slice(0, 2),
                 fmt::format("picture {} needs class ids of the size of its image", i));
    details.pictures.push_back(std::move(picture));
  }
  return details;
}

void write_step_memory(const std::filesystem::path& path, const StepTimeline& timeline) {
  std::vector<double> seconds, mark_seconds;
  std::vector<int64_t> bytes;
  std::vector<std::string> names;
  for (const auto& sample : timeline.samples) {
    seconds.push_back(sample.seconds);
    bytes.push_back(sample.current_bytes);
  }
  for (const auto& mark : timeline.marks) {
    mark_seconds.push_back(mark.seconds);
    names.push_back(mark.name);
  }
  io::Safetensors file;
  file.tensors = {{"seconds", at::tensor(seconds, at::kDouble)},
                  {"bytes", at::tensor(bytes, at::kLong)},
                  {"mark_seconds", at::tensor(mark_seconds, at::kDouble)}};
  file.metadata = {{"step", std::to_string(timeline.step)}, {"mark_names", json_list(names)}};
  io::write_safetensors(path, file);
}

StepTimeline read_step_memory(const std::filesystem::path& path) {
  const Contents file(path);
  StepTimeline timeline;
  timeline.step = file.number("step");
  const at::Tensor seconds = file.tensor("seconds", at::kDouble, 1),
                   bytes = file.tensor("bytes", at::kLong, 1);
  file.check(seconds.sizes() == bytes.sizes(), "needs as many seconds as bytes");
  for (int64_t i = 0; i < seconds.size(0); ++i)
    timeline.samples.push_back({seconds.const_data_ptr<double>()[i], bytes.const_data_ptr<int64_t>()[i]});
  const at::Tensor marks = file.tensor("mark_seconds", at::kDouble, 1);
  const auto names = file.texts("mark_names");
  file.check(marks.size(0) == static_cast<int64_t>(names.size()), "needs as many mark_names as mark_seconds");
  for (size_t i = 0; i < names.size(); ++i)
    timeline.marks.push_back({marks.const_data_ptr<double>()[i], names[i]});
  return timeline;
}

EvaluationDetails take_details(EvaluationRecord& record, std::vector<EvaluationPicture> pictures,
                               const ReportOptions& options) {
  EvaluationDetails details{record.step,          record.epoch, record.segmentation, options.class_names,
                            options.class_colors, {},           std::move(pictures)};
  const auto counts = std::exchange(record.confusion, {});
  const auto classes = counts.empty() ? static_cast<int64_t>(details.class_names.size())
                                      : std::llround(std::sqrt(static_cast<double>(counts.size())));
  details.class_names.resize(static_cast<size_t>(classes));
  for (size_t i = options.class_names.size(); i < details.class_names.size(); ++i)
    details.class_names[i] = fmt::format("class {}", i);
  if (!details.class_colors.defined() || details.class_colors.size(0) != classes)
    details.class_colors = data::class_colors(classes);
  if (!counts.empty()) details.confusion = at::tensor(counts, at::kLong).view({classes, classes});
  return details;
}

PictureSampler::PictureSampler(const ReportOptions& options, int64_t images, int64_t ignore_id)
    : options_(options), images_(images), ignore_id_(ignore_id) {}

bool PictureSampler::wants(int64_t index) const {
  const int64_t count = std::min(options_.pictures, images_);
  for (int64_t k = 0; k < count; ++k)
    if (k * images_ / count == index) return true;
  return false;
}

void PictureSampler::add(const data::Batch& batch, const at::Tensor& logits) {
  if (batch.images.dim() != 4 || batch.images.size(1) != 3)
    return;  // a network of the user's for other inputs
  const int64_t height = batch.images.size(2), width = batch.images.size(3);
  const int64_t longest = std::max(height, width);
  const auto reduced = [&](int64_t side) {
    return longest <= kLongestSide ? side : std::max<int64_t>(1, side * kLongestSide / longest);
  };
  for (int64_t i = 0; i < batch.images.size(0); ++i) {
    if (!wants(seen_++)) continue;
    const at::Tensor truth = batch.targets[i];
    if (truth.dim() != 0 && truth.sizes() != batch.images.sizes().slice(2)) continue;
    EvaluationPicture picture;
    picture.name = static_cast<size_t>(i) < batch.names.size() ? batch.names[static_cast<size_t>(i)]
                                                               : fmt::format("image {}", seen_ - 1);
    picture.image = picture_of(batch.images[i], options_, reduced(height), reduced(width));
    if (truth.dim() == 0) {
      picture.truth = truth.cpu().to(at::kLong);
      picture.prediction = logits[i].argmax().cpu();
    } else {
      const at::Tensor ids = predicted_classes(logits.narrow(0, i, 1), truth.sizes())[0].cpu();
      const at::Tensor known = truth.cpu();
      const auto small = [&](const at::Tensor& map) {
        return smaller_ids(map.clamp(0, kVoid).to(at::kByte), reduced(height), reduced(width)).contiguous();
      };
      picture.truth = small(known.masked_fill(known.eq(ignore_id_), kVoid));
      picture.prediction = small(ids);
    }
    pictures_.push_back(std::move(picture));
  }
}

}  // namespace palimpsest::train
