#include "palimpsest/cli/weights_file.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/output_file.h"
#include "palimpsest/io/safetensors.h"
#include "palimpsest/models/fold.h"
#include "palimpsest/models/registry.h"
#include "palimpsest/models/weights.h"
#include "palimpsest/nn/inplace_abn.h"
#include "palimpsest/train/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <vector>

namespace palimpsest::cli {
namespace {

namespace fs = std::filesystem;

bool has_slope(const Options& options) {
  return options.model.activation == "leaky_relu" || options.model.activation == "elu";
}

double eps_of(const nn::Model& model) {
  for (const auto& module : model.modules(/*include_self=*/false))
    if (const auto* norm = module->as<nn::NormImpl>()) return norm->options.eps();
  return nn::InPlaceABNOptions(1).eps();  // all normalizations are folded
}

std::string activation_text(const std::string& name, const std::string& slope) {
  return slope.empty() ? name : name + " with " + (name == "elu" ? "alpha " : "slope ") + slope;
}

/// Tells of what the shapes of a file's tensors do not show: its network pools elsewhere, or its classes are others.
void tell_differences(const Options& options, const std::string& model, const std::string& config,
                      const std::string& path, bool takes_classifier) {
  if (model.starts_with("wide_resnet") && options.model.name == "deeplabv3_" + model)
    std::cerr << "palimpsest: these weights are of " << model
              << ", which has pooling layers where the body of " << options.model.name
              << " has strides; weights of " << model << "_a2 have that form" << std::endl;
  if (config.empty() || !takes_classifier) return;
  Options theirs;
  theirs.run.command = options.run.command;
  try {
    read_stored_toml(theirs, config, path);
  } catch (const Error&) {
    return;  // the settings of another version
  }
  const auto &a = theirs.model.class_names, &b = options.model.class_names;
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (in_a != a.end() && in_b != b.end())
    std::cerr << "palimpsest: class " << in_a - a.begin() << " of these weights is '" << printable(*in_a)
              << "', here it is '" << printable(*in_b)
              << "'; --reset-classifier starts with a random classifier" << std::endl;
}

/// Leaves the tensors of the network in those of a file: the averages, if `averaged` and there are any.
void take_network(nn::StateDict& tensors, bool averaged = true) {
  if (averaged) train::take_averages(tensors);
  models::unwrap(tensors);
}

/// Throws Error(kUsage) if the user asks for other weights than the averages of a file without any.
void require_averages(const Options& options, nn::StateDict tensors) {
  if (options.run.without_average && !train::take_averages(tensors))
    throw Error(ErrorKind::kUsage, "--without-average has no effect: '" + options.run.checkpoint +
                                       "' has no averages (train --ema-decay)");
}

}  // namespace

std::string checkpoint_at(const std::string& path) {
  std::error_code error;  // the reader of the file reports that
  if (!fs::is_directory(path, error)) return path;
  const fs::path file = fs::path(path) / train::kCheckpointFile;
  if (fs::exists(file, error) || error) return file.string();
  std::vector<std::string> runs;
  for (fs::directory_iterator entry(path, error), end; entry != end && !error; entry.increment(error))
    if (std::error_code ignored; fs::exists(entry->path() / train::kCheckpointFile, ignored))
      runs.push_back("'" + entry->path().string() + "'");
  std::sort(runs.begin(), runs.end());
  std::string message = "'" + path + "' holds no " + train::kCheckpointFile;
  if (!runs.empty()) message += fmt::format("; these do: {}", fmt::join(runs, ", "));
  throw Error(ErrorKind::kCheckpoint, message);
}

void check_claims(const Options& options, const nn::StateDict& tensors, const std::string& source) {
  int64_t values = 0;
  for (const auto& [key, tensor] : tensors) values += tensor.numel();
  if (const int64_t least = models::least_weights(options.model.name); values < least)
    throw Error(ErrorKind::kCheckpoint,
                fmt::format("{} does not fit the model: {} has at least {} weights, the file has {} values",
                            source, options.model.name, least, values));
  constexpr int64_t kUnsuspicious =
      10'000;  // a classifier of so few rows costs little: the whole model is compared
  if (options.model.classes <= kUnsuspicious) return;
  Options one_class = options;
  one_class.model.classes = 1;
  for (const auto& [key, tensor] : nn::state_dict(*make_model(one_class))) {
    if (key != "fc.weight" && key != "cls.weight" && key != "classifier.weight") continue;
    std::vector<int64_t> wanted = tensor.sizes().vec();
    wanted[0] = options.model.classes;
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [&](const auto& entry) { return entry.first == key; });
    if (found == tensors.end() || found->second.sizes() != at::IntArrayRef(wanted))
      throw Error(ErrorKind::kCheckpoint,
                  fmt::format("{} does not fit the model: {} must be ({}) for {} classes", source, key,
                              fmt::join(wanted, ", "), options.model.classes));
  }
}

std::shared_ptr<nn::Model> load_trained_model(const Options& options) {
  const std::string& path = options.run.checkpoint;
  nn::LoadOptions load;
  load.source = path;
  load.way_out = "use the model and number of classes that it was made with";
  io::Safetensors header = io::read_safetensors_header(path);
  require_averages(options, header.tensors);
  take_network(header.tensors, !options.run.without_average);
  check_claims(options, header.tensors, path);
  auto model = make_model(options);
  make_format(options).convert(*model);
  model->eval();
  if (header.metadata.contains("folded")) model = models::fold(std::move(model));
  const nn::StateDict wanted = nn::state_dict(*model);
  nn::check_fit(header.tensors, wanted, load);  // before gigabytes are read
  io::Safetensors file = io::read_safetensors(path);
  take_network(file.tensors, !options.run.without_average);
  nn::load_state_dict(wanted, file.tensors, load);
  return model;
}

void check_weights_file(const Options& options) {
  const fs::path file = options.run.file;
  if (file.empty()) throw Error(ErrorKind::kUsage, "--output is required: the weights are written there");
  check_tensor_file(file, "--output", options);
}

std::string activation_text(const Options& options) {
  return activation_text(options.model.activation,
                         has_slope(options) ? fmt::format("{}", options.model.slope) : "");
}

std::string describe_network(const Options& options) {
  return fmt::format("{}, {} classes, {}", options.model.name, options.model.classes,
                     activation_text(options));
}

void write_weights(const Options& options, const nn::Model& model, nn::StateDict tensors, bool folded) {
  io::Safetensors file;
  file.tensors = std::move(tensors);
  file.metadata = {{"format", "pt"},
                   {"model", options.model.name},
                   {"classes", std::to_string(options.model.classes)},
                   {"activation", options.model.activation},
                   {"eps", fmt::format("{}", eps_of(model))},
                   {"config", to_toml(options, Scope::kRun)}};
  if (has_slope(options)) file.metadata["slope"] = fmt::format("{}", options.model.slope);
  if (folded) file.metadata["folded"] = "true";
  check_not_in_use(options.run.file);
  io::write_safetensors(options.run.file, file);
}

void start_from_weights(const Options& options, nn::Model& model) {
  if (options.model.weights.empty()) return;
  const std::string path = checkpoint_at(options.model.weights);
  io::Safetensors header = io::read_safetensors_header(path);
  const auto entry = [&](const char* key) {
    const auto found = header.metadata.find(key);
    return found == header.metadata.end() ? std::string() : shortened(found->second, 100);
  };
  if (entry("folded") == "true")
    throw Error(ErrorKind::kCheckpoint, "'" + path +
                                            "' is folded for inference and has no batch normalizations to "
                                            "train: export the weights again without --fold");
  take_network(header.tensors);
  models::check_start(model, std::move(header.tensors), options.model.reset_classifier, "'" + path + "'");
  io::Safetensors file = io::read_safetensors(path);
  take_network(file.tensors);
  const auto start =
      models::start_from(model, std::move(file.tensors), options.model.reset_classifier, "'" + path + "'");
  if (options.output.quiet) return;
  const char* what = start == models::Start::kBody               ? "the body of the network"
                     : start == models::Start::kAllButClassifier ? "the network without its classifier"
                                                                 : "the whole network";
  std::cerr << "palimpsest: " << what << " starts from " << printable(path) << std::endl;
  const auto config = header.metadata.find("config");
  tell_differences(options, entry("model"), config == header.metadata.end() ? "" : config->second, path,
                   start == models::Start::kAll);
  const std::string theirs = activation_text(entry("activation"), entry("slope"));
  if (!entry("activation").empty() && theirs != activation_text(options))
    std::cerr << "palimpsest: these weights were trained with " << printable(theirs) << ", this training has "
              << activation_text(options) << std::endl;
}

}  // namespace palimpsest::cli
