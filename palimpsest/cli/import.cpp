#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/weights_file.h"
#include "palimpsest/io/state_dict.h"
#include "palimpsest/models/registry.h"
#include "palimpsest/models/weights.h"
#include "palimpsest/nn/activation.h"

#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace palimpsest::cli {
namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& reason) {
  throw Error(ErrorKind::kCheckpoint, "cannot import '" + file + "': " + reason);
}

bool is_torchvisions_deeplab(const nn::StateDict& tensors) {
  const auto has = [&](std::string_view prefix) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const auto& entry) { return entry.first.starts_with(prefix); });
  };
  return has("backbone.") && has("classifier.0.convs.");
}

/// Takes the number of classes from the file unless the user gave one. Every model that we import has a
/// classifier.
void complete_classes(Options& options, const nn::StateDict& tensors) {
  if (options.model.classes > 0) return;
  if (const auto count = models::class_count(tensors)) {
    options.model.classes = *count;
  } else if (!options.model.class_names.empty()) {
    options.model.classes = static_cast<int64_t>(options.model.class_names.size());
  }
  const auto names = static_cast<int64_t>(options.model.class_names.size());
  if (names > 0 && names != options.model.classes)
    throw Error(ErrorKind::kUsage,
                fmt::format("[model] class_names (--class-names) must have one name per class: the "
                            "file has {} classes, got {} names",
                            options.model.classes, names));
}

void check_fit(const std::string& file, const Options& options, const nn::StateDict& tensors,
               const nn::Model& model) {
  const nn::StateDictDiff diff = nn::compare(tensors, nn::state_dict(model));
  if (diff.empty()) return;
  if (is_torchvisions_deeplab(tensors))
    refuse(file,
           "it is torchvision's DeepLabV3, which has another head than ours; import torchvision's file of "
           "the ResNet and start from it with train --weights");
  const std::string other = models::fitting_model(tensors);
  std::string way_out = "no other model of ours fits, either";
  if (other == options.model.name) {
    way_out = fmt::format("the file has {} classes: leave --classes out", *models::class_count(tensors));
  } else if (!other.empty()) {
    way_out = "it fits --model " + other;
  }
  refuse(file, fmt::format("it does not fit {}: {}; {}", options.model.name, diff.text(), way_out));
}

void check_values(const std::string& file, const nn::StateDict& tensors) {
  for (const auto& [key, tensor] : tensors) {
    if (!at::isfinite(tensor).all().item<bool>()) refuse(file, key + " holds NaN or infinity");
    if (key.ends_with("running_var") && (tensor < 0).any().item<bool>())
      refuse(file, key + " holds a variance below 0");
  }
}

/// Sets the activation of the file's network, unless the user gave one: torchvision's networks have ReLU where
/// ours have leaky ReLU by default, and the package's layers have leaky ReLU with slope 0.01.
void take_activation(Options& options, models::WeightFormat format) {
  if (options.given.contains("model.activation") || format == models::WeightFormat::kInplaceAbn) return;
  if (models::default_activation(options.model.name) != nn::Activation::kLeakyReLU) return;
  options.model.activation = "relu";
  if (!options.given.contains("model.strategy") && models::normalizes(options.model.name))
    options.model.strategy = "store_y";
}

}  // namespace

int run_import(const Options& given) {
  Options options = given;
  const std::string& file = options.run.checkpoint;
  check_weights_file(options);
  if (!options.given.contains("model.name"))
    throw Error(ErrorKind::kUsage, "--model is required: it says which network the weights are of");

  const auto check = [&](const io::Safetensors& header) {
    const auto has = [&](const char* key) { return header.metadata.contains(key); };
    if (has("config") && has("model"))
      refuse(file,
             "it is a file of palimpsest already, with its network's description: eval, predict and train "
             "--weights take it as it is, and export writes its weights");
    Options judged = options;
    nn::StateDict shapes = header.tensors;
    models::unwrap(shapes);
    complete_classes(judged, shapes);
    check_claims(judged, shapes, "'" + file + "'");
    check_fit(file, judged, shapes, *make_model(judged));
  };
  nn::StateDict tensors = io::read_state_dict(file, check).tensors;
  const auto read = tensors.size();
  const int64_t renamed = models::unwrap(tensors);
  complete_classes(options, tensors);
  const auto format = models::weight_format(options.run.format, options.model.name, tensors);
  take_activation(options, format);
  const auto model = make_model(options);
  auto plain = models::plain_weights(tensors, *model, format);
  check_values(file, plain.tensors);
  write_weights(options, *model, std::move(plain.tensors), /*folded=*/false);

  fmt::print("{}: {}\n", printable(file), describe_network(options));
  fmt::print("tensors    {} read, {} renamed, {} counters added\n", read, renamed, plain.counters);
  fmt::print("format     {}: {}\n", models::to_string(format),
             plain.rescaled == 0
                 ? "weights of normalizations taken as they are"
                 : fmt::format("{} weights of normalizations changed to |weight| + eps", plain.rescaled));
  std::error_code ignored;
  const auto bytes = std::filesystem::file_size(options.run.file, ignored);
  fmt::print("written    {} ({:.1f} MB)\n", printable(options.run.file), static_cast<double>(bytes) / 1e6);
  return 0;
}

}  // namespace palimpsest::cli
