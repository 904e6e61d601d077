#include "palimpsest/train/checkpoint.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/safetensors.h"
#include "palimpsest/nn/misfit.h"
#include "palimpsest/nn/state_dict.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <optional>
#include <set>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace palimpsest::train {
namespace {

constexpr const char* kVersionKey = "palimpsest_checkpoint";
constexpr const char* kVersion = "1";
constexpr const char* kPrefix = "palimpsest.";
constexpr const char* kMomentum = "palimpsest.momentum.";
constexpr const char* kGenerator = "palimpsest.generator";
constexpr const char* kGpuGenerator = "palimpsest.generator.cuda";

using Entries = std::vector<std::pair<std::string, at::Tensor>>;

/// The momentum buffer of `parameter`; nullptr before its first step or without momentum.
const at::Tensor* momentum(const torch::optim::SGD& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return nullptr;
  const auto& buffer = static_cast<const torch::optim::SGDParamState&>(*found->second).momentum_buffer();
  return buffer.defined() ? &buffer : nullptr;
}

void require_finite(const std::string& name, const at::Tensor& tensor, int64_t step) {
  if (!tensor.is_floating_point() || tensor.isfinite().all().item<bool>()) return;
  throw Error(
      ErrorKind::kDiverged,
      fmt::format(
          "diverged: {} holds NaN or infinity after step {}; the last good checkpoint stays. A lower lr or "
          "a longer warm-up may help",
          name, step));
}

bool is_counter(const std::string& name) {
  return name.ends_with("num_batches_tracked");
}

/// The generator of the GPU that the model lives on, or none.
std::optional<at::Generator> gpu_generator(const torch::nn::Module& model) {
  const auto parameters = model.parameters();
  if (parameters.empty() || !parameters[0].is_cuda()) return std::nullopt;
  return at::globalContext().defaultGenerator(parameters[0].device());
}

void set_state(at::Generator generator, const at::Tensor& state, const char* name,
               const std::filesystem::path& path) {
  try {
    generator.set_state(state);
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::kCheckpoint, fmt::format("{}: {} is no state of libtorch's generator: {}",
                                                    path.string(), name, error.what_without_backtrace()));
  }
}

void raise(const nn::Misfit& misfit, const std::filesystem::path& path) {
  if (misfit.empty()) return;
  throw Error(
      ErrorKind::kCheckpoint,
      fmt::format(
          "{} does not fit the model: {}; use the model, number of classes and dtype that it was made with",
          path.string(), misfit.text()));
}

using Tensors = std::unordered_map<std::string, at::Tensor>;

Tensors by_name(const io::Safetensors& file) {
  return {file.tensors.begin(), file.tensors.end()};
}

/// Pairs of (destination, source) for all of `expected`; nothing is copied yet. `exact`: dtypes must be
/// equal.
std::vector<std::pair<at::Tensor, at::Tensor>> match(const Entries& expected, const Tensors& file, bool exact,
                                                     nn::Misfit& misfit) {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  std::set<std::string> names;
  for (const auto& [name, tensor] : expected) {
    names.insert(name);
    const auto found = file.find(name);
    if (found == file.end()) {
      if (!is_counter(name)) misfit.missing.emplace_back(name);
    } else if (misfit.fits(name, found->second, tensor, exact)) {
      pairs.emplace_back(tensor, found->second);
    }
  }
  std::set<std::string> left_over;  // sorted: the same message every time
  for (const auto& [name, tensor] : file)
    if (!names.contains(name) && !name.starts_with(kPrefix) && !is_counter(name)) left_over.insert(name);
  for (const auto& name : left_over) misfit.unexpected.push_back(name);
  return pairs;
}

void copy(const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs) {
  const at::NoGradGuard no_grad;
  for (const auto& [destination, source] : pairs) at::Tensor(destination).copy_(source);
}

template <class Number>
Number number(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata,
              const char* key) {
  const auto found = metadata.find(key);
  const std::string text = found == metadata.end() ? "" : found->second;
  Number value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || failure != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorKind::kCheckpoint,
                fmt::format("{}: the entry '{}' must be a {}number, got '{}'; the file is damaged",
                            path.string(), key, std::is_integral_v<Number> ? "whole " : "", text));
  }
  return value;
}

void check_version(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata) {
  const auto version = metadata.find(kVersionKey);
  if (version == metadata.end()) {
    throw Error(ErrorKind::kCheckpoint,
                fmt::format("{} holds weights, but no training state (no '{}' entry): it cannot be resumed",
                            path.string(), kVersionKey));
  }
  if (version->second != kVersion) {
    throw Error(ErrorKind::kCheckpoint,
                fmt::format("{} has checkpoint format {}, this program reads format {}", path.string(),
                            version->second, kVersion));
  }
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& model,
                     const torch::optim::SGD& optimizer, const RunState& state) {
  io::Safetensors file;
  file.metadata = state.metadata;
  file.metadata["format"] = "pt";
  file.metadata[kVersionKey] = kVersion;
  file.metadata["step"] = std::to_string(state.step);
  file.metadata["epoch"] = std::to_string(state.step / state.batches_per_epoch);
  file.metadata["batch"] = std::to_string(state.step % state.batches_per_epoch);
  file.metadata["batches_per_epoch"] = std::to_string(state.batches_per_epoch);
  file.metadata["batch_size"] = std::to_string(state.batch_size);
  file.metadata["seed"] = std::to_string(state.seed);

  if (state.precision != "f32") file.metadata["precision"] = state.precision;
  if (state.scaling) {
    const amp::GradScalerState& scaler = state.scaling->scaler;
    file.metadata["loss_scale"] = fmt::format("{}", scaler.scale);
    file.metadata["growth_tracker"] = std::to_string(scaler.growth_tracker);
    file.metadata["skipped_in_a_row"] = std::to_string(scaler.skipped_in_a_row);
    file.metadata["skipped_steps"] = std::to_string(state.scaling->skipped_steps);
    file.metadata["choose_scale"] = state.scaling->choose ? "1" : "0";
  }

  const Entries entries = nn::state_dict(model);
  for (const auto& [name, tensor] : entries) file.tensors.emplace_back(name, tensor.detach());
  for (const auto& [name, tensor] : entries)
    if (const at::Tensor* buffer = momentum(optimizer, tensor))
      file.tensors.emplace_back(kMomentum + name, *buffer);
  for (const auto& [name, tensor] : file.tensors) require_finite(name, tensor, state.step);
  file.tensors.emplace_back(kGenerator, at::detail::getDefaultCPUGenerator().get_state());
  if (const auto generator = gpu_generator(model))
    file.tensors.emplace_back(kGpuGenerator, generator->get_state());
  io::write_safetensors(path, file);
}

RunState load_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                         torch::optim::SGD& optimizer) {
  const io::Safetensors file = io::read_safetensors(path);
  check_version(path, file.metadata);
  RunState state;
  state.step = number<int64_t>(path, file.metadata, "step");
  state.batches_per_epoch = number<int64_t>(path, file.metadata, "batches_per_epoch");
  state.batch_size = number<int64_t>(path, file.metadata, "batch_size");
  state.seed = number<uint64_t>(path, file.metadata, "seed");
  if (const auto precision = file.metadata.find("precision"); precision != file.metadata.end())
    state.precision = precision->second;
  if (file.metadata.contains("loss_scale"))
    state.scaling = {{number<double>(path, file.metadata, "loss_scale"),
                      number<int64_t>(path, file.metadata, "growth_tracker"),
                      number<int64_t>(path, file.metadata, "skipped_in_a_row")},
                     number<int64_t>(path, file.metadata, "skipped_steps"),
                     number<int>(path, file.metadata, "choose_scale") != 0};
  state.metadata = file.metadata;
  for (const char* key :
       {"format", kVersionKey, "step", "epoch", "batch", "batches_per_epoch", "batch_size", "seed",
        "precision", "loss_scale", "growth_tracker", "skipped_in_a_row", "skipped_steps", "choose_scale"})
    state.metadata.erase(key);

  const Tensors tensors = by_name(file);
  const Entries entries = nn::state_dict(model);
  nn::Misfit misfit;
  const auto pairs = match(entries, tensors, /*exact=*/true, misfit);
  std::set<std::string> momentum_names;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;  // (parameter, its momentum)
  for (const auto& [parameter_name, parameter] : entries) {
    const std::string name = kMomentum + parameter_name;
    const auto found = tensors.find(name);
    if (found == tensors.end()) continue;
    momentum_names.insert(name);
    if (misfit.fits(name, found->second, parameter, /*same_type=*/true))
      buffers.emplace_back(parameter, found->second);
  }
  for (const auto& [name, tensor] : file.tensors)
    if (name.starts_with(kMomentum) && !momentum_names.contains(name)) misfit.unexpected.push_back(name);
  const auto generator_state = tensors.find(kGenerator);
  if (generator_state == tensors.end()) misfit.missing.emplace_back(kGenerator);
  raise(misfit, path);

  set_state(at::detail::getDefaultCPUGenerator(), generator_state->second, kGenerator, path);
  const auto gpu_state = tensors.find(kGpuGenerator);
  if (const auto generator = gpu_generator(model); generator && gpu_state != tensors.end())
    set_state(*generator, gpu_state->second, kGpuGenerator, path);
  copy(pairs);
  optimizer.state().clear();
  for (const auto& [parameter, source] : buffers) {
    auto slot = std::make_unique<torch::optim::SGDParamState>();
    slot->momentum_buffer(at::empty_like(parameter.detach()).copy_(source));
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(slot);
  }
  return state;
}

void load_weights(const std::filesystem::path& path, torch::nn::Module& model) {
  const io::Safetensors file = io::read_safetensors(path);
  nn::Misfit misfit;
  const auto pairs = match(nn::state_dict(model), by_name(file), /*exact=*/false, misfit);
  raise(misfit, path);
  copy(pairs);
}

std::map<std::string, std::string> read_checkpoint_metadata(const std::filesystem::path& path) {
  return io::read_safetensors(path).metadata;
}

}  // namespace palimpsest::train
