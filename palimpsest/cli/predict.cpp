#include "palimpsest/base/error.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/trained_model.h"
#include "palimpsest/data/dataset.h"
#include "palimpsest/io/image.h"
#include "palimpsest/train/tensor_format.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

namespace palimpsest::cli {
namespace {

namespace fs = std::filesystem;

bool is_image(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

/// Files as they are named; of a folder its images, sorted by name.
std::vector<fs::path> list_images(const std::vector<std::string>& inputs) {
  std::vector<fs::path> images;
  for (const fs::path input : inputs) {
    if (!fs::exists(input)) throw Error(ErrorKind::kData, input.string() + ": no such image or folder");
    if (!fs::is_directory(input)) {
      images.push_back(input);
      continue;
    }
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(input))
      if (entry.is_regular_file() && is_image(entry.path())) found.push_back(entry.path());
    if (found.empty())
      throw Error(ErrorKind::kData, input.string() + ": the folder holds no .jpg or .png image");
    std::sort(found.begin(), found.end());
    images.insert(images.end(), found.begin(), found.end());
  }
  return images;
}

/// Where each picture goes: FOLDER/STEM.png. Two inputs of one stem would overwrite each other.
std::vector<fs::path> picture_paths(const std::vector<fs::path>& images, const fs::path& folder) {
  std::map<fs::path, fs::path> taken;
  std::vector<fs::path> paths;
  for (const fs::path& image : images) {
    const fs::path path = folder / (image.stem().string() + ".png");
    const auto [entry, fresh] = taken.emplace(path, image);
    if (!fresh)
      throw Error(ErrorKind::kUsage, image.string() + " and " + entry->second.string() +
                                         " would both be written to " + path.string() +
                                         "; predict them into two folders");
    std::error_code missing;
    if (fs::equivalent(path, image, missing))
      throw Error(ErrorKind::kUsage, path.string() + " is itself an input; name another --output");
    paths.push_back(path);
  }
  return paths;
}

/// u8 (H, W, 3) to (1, 3, H, W) as the training images were normalized.
at::Tensor network_input(const at::Tensor& image, const Options& options) {
  const auto three = [](const std::array<double, 3>& values) {
    return torch::tensor(at::ArrayRef<double>(values), at::kFloat).view({1, 3, 1, 1});
  };
  const at::Tensor rgb = image.permute({2, 0, 1}).unsqueeze(0).to(at::kFloat).div(255);
  return (rgb - three(options.data.mean)) / three(options.data.std);
}

/// Logits (classes, H, W) of an image of any size. The network sees whole strides (the rest is the mean
/// colour); the border that this adds is cut off again.
at::Tensor pixel_logits(nn::Model& model, const at::Tensor& input, const train::TensorFormat& format) {
  constexpr int64_t kStride = 32;
  const int64_t height = input.size(2), width = input.size(3);
  const auto missing = [](int64_t size) { return (kStride - size % kStride) % kStride; };
  const at::Tensor padded = at::constant_pad_nd(input, {0, missing(width), 0, missing(height)});
  return model.forward(format.convert(padded))[0].slice(1, 0, height).slice(2, 0, width);
}

void predict_pixels(nn::Model& model, const std::vector<fs::path>& images, const Options& options) {
  if (options.output.folder.empty())
    throw Error(ErrorKind::kUsage, "[output] folder (--output) is required: the pictures go there");
  const auto paths = picture_paths(images, options.output.folder);
  const auto format = train::TensorFormat::parse(options.train.dtype, options.train.channels_last);
  const at::Tensor colors = data::class_colors(options.model.classes);
  for (std::size_t i = 0; i < images.size(); ++i) {
    const at::Tensor logits = pixel_logits(model, network_input(io::read_image(images[i]), options), format);
    const at::Tensor ids = logits.argmax(0);
    io::write_png(paths[i], colors.index({ids}).contiguous());
    if (!options.run.json) std::cout << images[i].string() << " -> " << paths[i].string() << std::endl;
  }
  if (!options.run.json) return;
  auto list = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < images.size(); ++i)
    list.push_back({{"image", images[i].string()}, {"picture", paths[i].string()}});
  std::cout << list.dump() << std::endl;
}

void predict_images(nn::Model& model, const std::vector<fs::path>& images, const Options& options) {
  if (options.given.contains("output.folder"))
    throw Error(ErrorKind::kUsage, options.given.at("output.folder") + " has no effect: " +
                                       options.model.name + " names images, and the names are printed");
  const auto format = train::TensorFormat::parse(options.train.dtype, options.train.channels_last);
  auto list = nlohmann::ordered_json::array();
  for (const fs::path& image : images) {
    const at::Tensor input = network_input(io::read_image(image), options);
    const at::Tensor probabilities = model.forward(format.convert(input))[0].to(at::kDouble).softmax(0);
    const auto [best, ids] = probabilities.topk(std::min<int64_t>(5, options.model.classes));
    auto classes = nlohmann::ordered_json::object();
    std::string line = image.string() + ":";
    for (int64_t k = 0; k < best.size(0); ++k) {
      const std::string& name = options.model.class_names.at(ids[k].item<int64_t>());
      classes[name] = best[k].item<double>();
      line += fmt::format("{} {} {:.4f}", k ? "," : "", name, best[k].item<double>());
    }
    if (!options.run.json) std::cout << line << std::endl;
    list.push_back({{"image", image.string()}, {"probabilities", classes}});
  }
  if (options.run.json) std::cout << list.dump() << std::endl;
}

}  // namespace

int run_predict(const Options& given) {
  Options options = given;
  const auto images = list_images(options.run.inputs);
  const auto model = load_trained_model(options);
  // Training stores the names; a configuration of one's own need not have them.
  for (int64_t i = options.model.class_names.size(); i < options.model.classes; ++i)
    options.model.class_names.push_back("class " + std::to_string(i));
  const torch::NoGradGuard no_grad;
  if (model->segments()) {
    predict_pixels(*model, images, options);
  } else {
    predict_images(*model, images, options);
  }
  return 0;
}

}  // namespace palimpsest::cli
