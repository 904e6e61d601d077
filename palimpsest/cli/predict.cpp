#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/label_files.h"
#include "palimpsest/cli/output_file.h"
#include "palimpsest/cli/weights_file.h"
#include "palimpsest/data/class_colors.h"
#include "palimpsest/data/example.h"
#include "palimpsest/data/files.h"
#include "palimpsest/data/image_folder.h"
#include "palimpsest/data/transforms.h"
#include "palimpsest/io/image.h"
#include "palimpsest/io/safetensors.h"
#include "palimpsest/train/views.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

namespace palimpsest::cli {
namespace {

namespace fs = std::filesystem;

/// Lists the files as they are named, and the images of each folder sorted by name. Standard error names what
/// the folders hold beside images.
std::vector<fs::path> list_inputs(const std::vector<std::string>& inputs) {
  std::vector<fs::path> images, skipped;
  for (const fs::path input : inputs) {
    if (!data::is_there(input))
      throw Error(ErrorKind::kData, "'" + input.string() + "': no such image or folder");
    std::error_code ignored;
    if (!fs::is_directory(input, ignored)) {
      images.push_back(input);
      continue;
    }
    const auto found = data::list_images(input, "images to predict", &skipped);
    images.insert(images.end(), found.begin(), found.end());
  }
  if (!skipped.empty()) std::cerr << "palimpsest: " << data::skipped_text(skipped) << std::endl;
  return images;
}

/// The images, found by their inode: names may be links.
class Inputs {
 public:
  explicit Inputs(const std::vector<fs::path>& images) {
    for (const fs::path& image : images)
      if (const auto id = identity(image)) files_.insert(*id);
  }
  bool contains(const fs::path& file) const {
    const auto id = identity(file);
    return id && files_.contains(*id);
  }

 private:
  using Identity = std::pair<dev_t, ino_t>;
  static std::optional<Identity> identity(const fs::path& file) {
    struct stat status{};
    if (::stat(file.c_str(), &status) != 0) return std::nullopt;
    return Identity(status.st_dev, status.st_ino);
  }
  std::set<Identity> files_;
};

/// Returns the file that `path` names, through links and relative parts; it need not exist.
fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path target = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? path : target;
}

/// Returns FOLDER/STEM.png for each image. Two inputs with one stem are an error: they would overwrite each
/// other.
std::vector<fs::path> picture_paths(const std::vector<fs::path>& images, const Options& options) {
  const fs::path folder = options.output.folder;
  const Inputs inputs(images);
  const fs::path logits = options.run.logits.empty() ? fs::path() : resolved(options.run.logits);
  std::map<fs::path, fs::path> taken;
  std::vector<fs::path> paths;
  for (const fs::path& image : images) {
    const fs::path path = folder / data::label_file_name(image);
    const auto [entry, fresh] = taken.emplace(path, image);
    if (!fresh)
      throw Error(ErrorKind::kUsage, image.string() + " and " + entry->second.string() +
                                         " would both be written to " + path.string() +
                                         "; predict them into two folders");
    if (inputs.contains(path))
      throw Error(ErrorKind::kUsage, path.string() + " is itself an input; name another --output");
    if (!logits.empty() && resolved(path) == logits)
      throw Error(ErrorKind::kUsage, "--logits must be a file of its own, got " + path.string() +
                                         ", which is the picture of " + image.string());
    check_picture_file(path, options);
    paths.push_back(path);
  }
  return paths;
}

/// Reads a whole image as (1, 3, H, W), normalized as the training images were. The networks take any size.
at::Tensor read_input(const fs::path& path, const Options& options, const train::TensorFormat& format) {
  data::TransformOptions transform;
  transform.exif_orientation = options.data.exif_orientation;
  transform.mean = options.data.mean;
  transform.std = options.data.std;
  const at::Tensor image = data::read_image(path, transform);
  const int64_t height = image.size(0), width = image.size(1);
  const data::View whole{height, width, 0, 0, height, width, false};
  return format.convert(data::view_image(image, whole, transform).unsqueeze(0));
}

/// Reads an image as `eval` shows it to a network that names images.
at::Tensor read_example(const fs::path& path, const Options& options, const train::TensorFormat& format) {
  const data::TransformOptions transform = evaluation_transform(options);
  Random no_random(0);
  const data::Sample sample =
      data::make_example(data::open_image(path, transform), {}, transform, no_random, path.string());
  data::Batch batch;
  batch.images = sample.image.unsqueeze(0);
  batch.normalization = sample.normalization;
  format.convert(batch);
  return batch.images;
}

/// The images that cannot be read: an error, or with bad_images = skip named and left out.
class Unreadable {
 public:
  /// `list` gets the image and its error.
  Unreadable(const Options& options, nlohmann::ordered_json& list)
      : skips_(options.data.bad_images == "skip"), list_(list) {}

  /// Returns what `read` returns, or nothing for an image that is left out.
  template <class Read>
  std::optional<at::Tensor> unless_bad(const fs::path& image, const Read& read) {
    try {
      return read();
    } catch (const Error& error) {
      if (!skips_ || error.kind() != ErrorKind::kData) throw;
      std::cerr << "palimpsest: left out: " << printable(error.what()) << std::endl;
      list_.push_back({{"image", as_utf8(image.string())}, {"error", as_utf8(error.what())}});
      ++count_;
      return std::nullopt;
    }
  }

  /// Tells how many of `images` are left out; all of them are an error.
  void finish(std::size_t images) const {
    if (count_ == 0) return;
    const std::string text =
        fmt::format("{} of {} could not be read", count_, counted(static_cast<int64_t>(images), "image"));
    if (count_ == images) throw Error(ErrorKind::kData, text);
    std::cerr << "palimpsest: " << text << std::endl;
  }

 private:
  bool skips_;
  nlohmann::ordered_json& list_;
  std::size_t count_ = 0;
};

bool has_nan(const at::Tensor& outputs) {
  return outputs.isnan().any().item<bool>();
}

/// Says that outputs of an image are NaN, of which any prediction is a class all the same.
void note_nan(const fs::path& image, bool nan) {
  if (nan)
    std::cerr << "palimpsest: " << printable(image.string())
              << ": the network's outputs are NaN, so its prediction means nothing: the network has "
                 "diverged, or its weights are damaged"
              << std::endl;
}

/// What the averaged views of an image say.
struct ViewResult {
  at::Tensor classes;            ///< (H, W) of i64 on the CPU
  at::Tensor log_probabilities;  ///< (C, H, W) on the CPU, if they are wanted
  bool nan = false;              ///< whether a probability is NaN
};

ViewResult predict_views(nn::Model& model, const at::Tensor& image, const train::ViewOptions& views,
                         const train::TensorFormat& format, bool wants_probabilities) {
  const int64_t height = image.size(1), width = image.size(2);
  ViewResult result{at::empty({height, width}, at::kLong), {}};
  train::for_each_band(model, image, views, format, [&](int64_t top, const at::Tensor& probabilities) {
    const int64_t rows = probabilities.size(1);
    result.classes.narrow(0, top, rows)
        .copy_(train::predicted_classes(probabilities.unsqueeze(0), {rows, width})[0]);
    result.nan = result.nan || has_nan(probabilities);
    if (!wants_probabilities) return;
    if (!result.log_probabilities.defined())
      result.log_probabilities =
          at::empty({probabilities.size(0), height, width}, probabilities.options().device(at::kCPU));
    // A probability that rounds to 0 has a finite logarithm, as a logit has.
    result.log_probabilities.narrow(1, top, rows)
        .copy_(probabilities.clamp_min(std::numeric_limits<float>::min()).log());
  });
  return result;
}

/// Collects the logits of each image under the image's name, for --logits FILE. For several views these are
/// the logarithms of the averaged probabilities, of which softmax gives the probabilities as it does of
/// logits.
class LogitsFile {
 public:
  /// Throws before the first image is read if the file exists and --overwrite is not given, or if the file is
  /// the checkpoint or an image.
  LogitsFile(const Options& options, const std::vector<fs::path>& images) : path_(options.run.logits) {
    file_.metadata["format"] = "pt";
    if (!wanted()) return;
    if (Inputs(images).contains(path_))
      throw Error(ErrorKind::kUsage,
                  "--logits must be a file of its own, got " + path_.string() + ", which is itself an input");
    std::size_t header_bytes = 0;
    for (const fs::path& image : images) header_bytes += image.string().size() + kBytesPerEntry;
    if (header_bytes > io::kMaxSafetensorsHeader)
      throw Error(ErrorKind::kUsage,
                  fmt::format("--logits can hold about {} images, got {}: predict fewer at a time",
                              images.size() * io::kMaxSafetensorsHeader / header_bytes, images.size()));
    check_tensor_file(path_, "--logits", options);
  }

  bool wanted() const { return !path_.empty(); }
  void note_views() { file_.metadata["values"] = "logarithms of the probabilities averaged over the views"; }
  void add(const fs::path& image, const at::Tensor& logits) {
    if (!wanted()) return;
    const std::string name = as_utf8(image.string());
    if (file_.find(name))
      throw Error(ErrorKind::kUsage, image.string() + " is given twice: --logits holds one entry per image");
    file_.tensors.emplace_back(name, logits);
  }
  void write() const {
    if (!wanted()) return;
    check_not_in_use(path_);
    io::write_safetensors(path_, file_);
  }

 private:
  // Of the header, beside the name: dtype, shape and place of the values.
  static constexpr std::size_t kBytesPerEntry = 120;

  fs::path path_;
  io::Safetensors file_;
};

void predict_pixels(nn::Model& model, const std::vector<fs::path>& images, const Options& options) {
  LogitsFile logits_file(options, images);
  const bool pictures = !options.output.folder.empty();
  if (!pictures && !logits_file.wanted())
    throw Error(ErrorKind::kUsage, "[output] folder (--output) is required: the pictures go there");
  const auto paths = pictures ? picture_paths(images, options) : std::vector<fs::path>();
  const auto format = make_format(options);
  const train::ViewOptions views = make_views(options);
  if (!views.is_single()) logits_file.note_views();
  std::optional<data::LabelEncoding> labels;
  if (!options.run.labels.empty()) labels = make_label_encoding(options);
  if (labels && !pictures)
    throw Error(ErrorKind::kUsage, "[output] folder (--output) is required: the label images go there");
  const at::Tensor colors = data::class_colors(options.data.kind, options.model.classes);
  auto list = nlohmann::ordered_json::array();
  Unreadable unreadable(options, list);
  for (std::size_t i = 0; i < images.size(); ++i) {
    const auto read =
        unreadable.unless_bad(images[i], [&] { return read_input(images[i], options, format); });
    if (!read) {
      if (std::error_code ignored; pictures && fs::exists(paths[i], ignored))
        std::cerr << "palimpsest: " << printable(paths[i].string()) << " stays as an earlier predict wrote it"
                  << std::endl;
      continue;
    }
    const at::Tensor& input = *read;
    at::Tensor ids;
    if (views.is_single()) {
      const at::IntArrayRef size = input.sizes().slice(2);
      const at::Tensor logits = train::coarse_logits(model, input, format.precision);
      note_nan(images[i], has_nan(logits));
      if (logits_file.wanted())
        logits_file.add(images[i], at::upsample_bilinear2d(logits, size, /*align_corners=*/false)[0].cpu());
      if (pictures) ids = train::predicted_classes(logits, size)[0].cpu();
    } else {
      ViewResult result = predict_views(model, input[0], views, format, logits_file.wanted());
      ids = result.classes;
      note_nan(images[i], result.nan);
      logits_file.add(images[i], result.log_probabilities);
    }
    auto& entry = list.emplace_back(nlohmann::ordered_json{{"image", as_utf8(images[i].string())}});
    if (!pictures) continue;
    check_not_in_use(paths[i]);
    if (labels) {
      data::write_labels(paths[i], ids.to(at::kByte), *labels);
    } else {
      io::write_png(paths[i], colors.index({ids}).contiguous());
    }
    if (!options.run.json)
      std::cout << printable(images[i].string()) << " -> " << printable(paths[i].string()) << std::endl;
    entry["picture"] = as_utf8(paths[i].string());
  }
  unreadable.finish(images.size());
  logits_file.write();
  if (options.run.json) std::cout << list.dump() << std::endl;
}

void predict_images(nn::Model& model, const std::vector<fs::path>& images, const Options& options) {
  if (const auto it = options.given.find("output.folder");
      it != options.given.end() && it->second.starts_with("--"))
    throw Error(ErrorKind::kUsage, it->second + " has no effect: " + options.model.name +
                                       " names images, and the names are printed");
  if (!options.run.labels.empty())
    throw Error(ErrorKind::kUsage,
                "--labels has no effect: " + options.model.name + " names images, and the names are printed");
  if (options.run.overwrite && options.run.logits.empty())
    throw Error(ErrorKind::kUsage, "--overwrite has no effect without --logits: " + options.model.name +
                                       " names images, and the names are printed");
  const auto format = make_format(options);
  auto list = nlohmann::ordered_json::array();
  LogitsFile logits_file(options, images);
  Unreadable unreadable(options, list);
  for (const fs::path& image : images) {
    const auto read = unreadable.unless_bad(image, [&] { return read_example(image, options, format); });
    if (!read) continue;
    const at::Tensor logits = train::forward(model, *read, format.precision)[0].cpu();
    note_nan(image, has_nan(logits));
    logits_file.add(image, logits);
    const at::Tensor probabilities = logits.to(at::kDouble).softmax(0);
    const auto [best, ids] = probabilities.topk(std::min<int64_t>(5, options.model.classes));
    auto classes = nlohmann::ordered_json::object();
    std::string line = printable(image.string()) + ":";
    for (int64_t k = 0; k < best.size(0); ++k) {
      const std::string& name = options.model.class_names.at(ids[k].item<int64_t>());
      classes[name] = best[k].item<double>();
      line += fmt::format("{} {} {:.4f}", k ? "," : "", printable(name), best[k].item<double>());
    }
    if (!options.run.json) std::cout << line << std::endl;
    list.push_back({{"image", as_utf8(image.string())}, {"probabilities", classes}});
  }
  unreadable.finish(images.size());
  logits_file.write();
  if (options.run.json) std::cout << list.dump() << std::endl;
}

}  // namespace

int run_predict(const Options& given) {
  Options options = given;
  const auto images = list_inputs(options.run.inputs);
  const auto model = load_trained_model(options);
  // A training stores the names; a configuration of the user's need not have them.
  for (int64_t i = options.model.class_names.size(); i < options.model.classes; ++i)
    options.model.class_names.push_back("class " + std::to_string(i));
  const torch::NoGradGuard no_grad;
  if (model->is_segmentation()) {
    predict_pixels(*model, images, options);
  } else {
    predict_images(*model, images, options);
  }
  return 0;
}

}  // namespace palimpsest::cli
