#include "palimpsest/base/printable.h"
#include "palimpsest/cli/checkpoint_summary.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/model_summary.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/models/registry.h"
#include "palimpsest/nn/dense_block.h"
#include "palimpsest/nn/strategy.h"
#include "palimpsest/train/loss.h"
#include "palimpsest/train/network.h"
#include "palimpsest/train/step.h"
#include "palimpsest/train/tensor_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

namespace palimpsest::cli {
namespace {

/// Two images, because a branch that pools an image to one value cannot be normalized over a batch of one.
constexpr int64_t kImages = 2;
constexpr double kMB = 1e6, kGiga = 1e9;

struct StrategyMemory {
  std::string strategy;
  double kept_mb_per_image;  ///< saved for backward
  double peak_mb;            ///< of a whole step of two images: parameters, gradients and all
};

at::Tensor random_images(const Options& options, const train::TensorFormat& format) {
  return format.convert(torch::rand({kImages, 3, options.run.size, options.run.size}));
}

at::Tensor any_targets(const at::Tensor& images, bool segments) {
  const auto options = images.options().dtype(at::kLong);
  return segments ? at::zeros({images.size(0), images.size(2), images.size(3)}, options)
                  : at::zeros({images.size(0)}, options);
}

StrategyMemory measure(Options options, const std::string& strategy) {
  options.model.strategy = strategy;
  const auto format = make_format(options);
  const auto model = make_model(options);
  format.convert(*model);
  const at::Tensor images = random_images(options, format);
  const at::Tensor targets = any_targets(images, model->is_segmentation());
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0);  // without momentum: it adds no memory
  train::Step step(*model, {format.precision, {}});
  memory::Meter meter(format.device);
  train::Step::RunOptions run;
  run.entering = [&](train::Step::Phase phase) {
    if (phase == train::Step::Phase::kBackward) meter.forward_done();
  };
  step.run(
      optimizer,
      [&] { return train::loss(train::coarse_logits(*model, images, format.precision), targets, {}); }, run);
  return {strategy, static_cast<double>(meter.kept_bytes()) / kMB / kImages,
          static_cast<double>(meter.peak_bytes()) / kMB};
}

/// Lists every strategy that the network, the activation and the dense strategy allow, without aliases.
std::vector<std::string> strategies(const Options::Model& model) {
  const auto activation = nn::parse_activation(model.activation);
  std::vector<std::string> names;
  std::set<nn::Strategy> seen;
  for (const auto& name : nn::strategy_names()) {
    const auto strategy = nn::parse_strategy(name);
    if (!models::normalizes(model.name) && strategy != nn::Strategy::kStandard) continue;
    const bool fits = model.dense_strategy == "auto"
                          ? nn::fits(strategy, activation)
                          : nn::fits(nn::parse_dense_strategy(model.dense_strategy), strategy, activation,
                                     model.pre_activation);
    if (fits && seen.insert(strategy).second) names.push_back(name);
  }
  return names;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return shape.empty() ? "-" : fmt::format("{}", fmt::join(shape, "x"));
}

int64_t multiply_adds_of(const std::vector<LayerSummary>& layers) {
  int64_t sum = 0;
  for (const auto& layer : layers) sum += layer.multiply_adds;
  return sum;
}

void print_layers(const Options& options, const std::vector<LayerSummary>& layers, int64_t parameters) {
  std::size_t width = 5;
  for (const auto& layer : layers) width = std::max(width, layer.name.size());
  fmt::print("{:<{}}  {:>16}  {:>16}  {:>12}  {:>14}\n", "layer", width, "weight", "output", "parameters",
             "multiply-adds");
  for (const auto& layer : layers)
    fmt::print("{:<{}}  {:>16}  {:>16}  {:>12}  {:>14}\n", layer.name, width, layer.shape,
               shape_text(layer.output), layer.parameters, layer.multiply_adds);
  fmt::print("\n{}: {} parameters, {:.1f} MB; outputs are of a batch of {} at {}x{} pixels\n",
             options.model.name, parameters,
             static_cast<double>(parameters) * (options.train.dtype == "f64" ? 8 : 4) / kMB, kImages,
             options.run.size, options.run.size);
  fmt::print("multiply-adds of convolutions and linear layers, per image: {:.3f} G\n",
             static_cast<double>(multiply_adds_of(layers)) / kGiga);
}

/// Prints the row of each strategy as soon as it is measured.
std::vector<StrategyMemory> measure_all(const Options& options, bool prints) {
  if (prints)
    fmt::print("\n{:<22}  {:>18}  {:>6}  {:>22}  {:>6}\n", "strategy", "kept MB per image", "ratio",
               "peak MB, 2 images", "ratio");
  std::vector<StrategyMemory> memory;
  for (const auto& strategy : strategies(options.model)) {
    std::fflush(stdout);
    const StrategyMemory& m = memory.emplace_back(measure(options, strategy));
    if (prints)
      fmt::print("{:<22}  {:>18.1f}  {:>6.2f}  {:>22.1f}  {:>6.2f}\n", m.strategy, m.kept_mb_per_image,
                 m.kept_mb_per_image / memory[0].kept_mb_per_image, m.peak_mb, m.peak_mb / memory[0].peak_mb);
  }
  if (prints)
    fmt::print(
        "\nkept: tensors saved for backward. peak: highest of a forward and backward pass, with parameters "
        "and gradients. MB = 10^6 bytes.\n");
  return memory;
}

/// Adds "size", "multiply_adds" (per image), "layers" and "strategies" to `json`.
void add_measured(nlohmann::ordered_json& json, const Options& options,
                  const std::vector<LayerSummary>& layers, const std::vector<StrategyMemory>& memory) {
  json["size"] = options.run.size;
  json["multiply_adds"] = multiply_adds_of(layers);
  auto& layer_list = json["layers"] = nlohmann::ordered_json::array();
  for (const auto& layer : layers)
    layer_list.push_back({{"name", layer.name},
                          {"weight", layer.shape},
                          {"output", layer.output},
                          {"parameters", layer.parameters},
                          {"multiply_adds", layer.multiply_adds}});
  auto& strategy_list = json["strategies"] = nlohmann::ordered_json::array();
  for (const auto& m : memory)
    strategy_list.push_back({{"strategy", m.strategy},
                             {"kept_mb_per_image", m.kept_mb_per_image},
                             {"peak_mb_of_two_images", m.peak_mb}});
}

/// Lists the layers of the model and counts its parameters.
std::vector<LayerSummary> list_layers(const Options& options, int64_t& parameters) {
  Options listed = options;
  // Other strategies run several layers as one operator, which shows one of them or none.
  listed.model.strategy = nn::to_string(nn::Strategy::kStandard);
  if (options.model.name.starts_with("densenet")) listed.model.dense_strategy = "shared_gradient";
  const auto model = make_model(listed);
  const auto format = make_format(listed);
  format.convert(*model);
  model->eval();
  const torch::NoGradGuard no_grad;
  for (const auto& p : model->parameters()) parameters += p.numel();
  return summarize(*model, [&] { model->forward(random_images(options, format)); });
}  // frees the model: its weights would count in every peak

}  // namespace

int run_info(const Options& options) {
  const bool of_file = !options.run.checkpoint.empty(), json_wanted = options.run.json;
  nlohmann::ordered_json json;
  if (of_file) {
    const CheckpointSummary summary = summarize_checkpoint(options);
    json = to_json(summary, options);
    if (!json_wanted) fmt::print("{}", to_text(summary));
  } else {
    json["model"] = options.model.name;
  }
  if (!of_file || options.given.contains("size")) {  // of a checkpoint on request: it takes seconds
    int64_t parameters = 0;
    if (of_file && !json_wanted) fmt::print("\n");
    const auto layers = list_layers(options, parameters);
    json["parameters"] = parameters;
    if (!json_wanted) print_layers(options, layers, parameters);
    add_measured(json, options, layers, measure_all(options, !json_wanted));
  } else if (!json_wanted) {
    fmt::print("\nLayers and memory per strategy: palimpsest info {} --size {}\n",
               printable(options.run.checkpoint), options.run.size);
  }
  if (json_wanted) std::cout << json.dump() << std::endl;
  return 0;
}

}  // namespace palimpsest::cli
