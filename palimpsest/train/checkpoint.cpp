#include "palimpsest/train/checkpoint.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/safetensors.h"
#include "palimpsest/io/state_dict.h"
#include "palimpsest/nn/state_dict.h"
#include "palimpsest/train/common/require.h"
#include "palimpsest/train/optimizer_state.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

namespace palimpsest::train {
namespace {

constexpr const char* kVersionKey = "palimpsest_checkpoint";
constexpr const char* kVersion = "1";
constexpr const char* kOptimizerKey = "palimpsest_optimizer";
constexpr const char* kPrefix = "palimpsest.";
constexpr const char* kAveragePrefix = "palimpsest.ema.";
constexpr const char* kBestValueKey = "palimpsest_best_value";
constexpr const char* kNoBest = "none";
constexpr const char* kBestStepKey = "palimpsest_best_step";
constexpr const char* kBestAgeKey = "palimpsest_best_age";
constexpr const char* kDefaultOptimizer = "SGD";  // of a file that names none
constexpr const char* kWayOut = "use the model, number of classes and dtype that it was made with";
constexpr const char* kOptimizerWayOut =
    "use the parameters and options that the optimizer was made with, or begin a new run from the weights "
    "alone (train::load_weights)";
constexpr const char* kGenerator = "palimpsest.generator";
constexpr const char* kGpuGenerator = "palimpsest.generator.cuda";
constexpr const char* kRankGenerators = "palimpsest.generator.ranks";
constexpr const char* kRankGpuGenerators = "palimpsest.generator.cuda.ranks";

/// The metadata that save_checkpoint writes itself.
constexpr std::array kReserved{"format",        kVersionKey,      "step",
                               "epoch",         "batch",          "batches_per_epoch",
                               "batch_size",    "seed",           kOrderKey,
                               kDataKey,        kOptimizerKey,    "precision",
                               "loss_scale",    "growth_tracker", "skipped_in_a_row",
                               "skipped_steps", "choose_scale",   kBestValueKey,
                               kBestStepKey,    kBestAgeKey};

void require_finite(const std::string& name, const at::Tensor& tensor, int64_t step) {
  if (!tensor.is_floating_point() || tensor.isfinite().all().item<bool>()) return;
  throw Error(
      ErrorKind::kDiverged,
      fmt::format("diverged: {} holds NaN or infinity after step {}; try a lower lr or a longer warm-up",
                  name, step));
}

/// Returns the generator of the GPU that holds the parameters, or nothing.
std::optional<at::Generator> gpu_generator(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  if (parameters.empty() || !parameters[0].is_cuda()) return std::nullopt;
  return at::globalContext().defaultGenerator(parameters[0].device());
}

void set_state(at::Generator generator, const at::Tensor& state, const char* name, const std::string& where) {
  try {
    generator.set_state(state);
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::kCheckpoint, fmt::format("{}: {} is no state of libtorch's generator: {}", where,
                                                    name, error.what_without_backtrace()));
  }
}

/// Sets the generators of the processor and of the module's GPU, if it has one and `gpu` is defined: both or, with an
/// Error, none.
void set_states(const torch::nn::Module& module, const at::Tensor& cpu, const at::Tensor& gpu,
                const std::string& where) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  set_state(generator, cpu, kGenerator, where);
  const auto other = gpu_generator(module);
  if (!other || !gpu.defined()) return;
  try {
    set_state(*other, gpu, kGpuGenerator, where);
  } catch (...) {
    generator.set_state(before);
    throw;
  }
}

std::string bytes_of(const at::Tensor& state) {
  const at::Tensor plain = state.contiguous();
  return {static_cast<const char*>(plain.const_data_ptr()), static_cast<std::size_t>(plain.numel())};
}

at::Tensor tensor_of(const std::string& bytes) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

/// Returns the member of each rank's states as the rows of one tensor.
at::Tensor rows_of(const std::vector<GeneratorStates>& ranks, std::string GeneratorStates::* member) {
  std::vector<at::Tensor> rows;
  rows.reserve(ranks.size());
  for (const GeneratorStates& states : ranks) rows.push_back(tensor_of(states.*member));
  return at::stack(rows);
}

/// Puts the rows of one tensor into the member of each rank's states.
void read_rows(const at::Tensor& rows, std::string GeneratorStates::* member,
               std::vector<GeneratorStates>& ranks, const std::filesystem::path& path) {
  if (!rows.defined()) return;
  if (rows.dim() != 2 || rows.scalar_type() != at::kByte ||
      (!ranks.empty() && rows.size(0) != static_cast<int64_t>(ranks.size())))
    throw Error(ErrorKind::kCheckpoint,
                fmt::format("{}: the states of the generators of the ranks must be bytes, one row per rank; "
                            "the file is damaged",
                            path.string()));
  ranks.resize(static_cast<std::size_t>(rows.size(0)));
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i].*member = bytes_of(rows[static_cast<int64_t>(i)]);
}

/// The entries of a checkpoint, sorted by their owners.
struct Parts {
  nn::StateDict module, optimizer, averages;
  // Undefined where the file has none.
  at::Tensor generator, gpu_generator, rank_generators, rank_gpu_generators;
};

Parts split(const nn::StateDict& tensors) {
  Parts parts;
  for (const auto& [name, tensor] : tensors) {
    if (name == kGenerator) {
      parts.generator = tensor;
    } else if (name == kGpuGenerator) {
      parts.gpu_generator = tensor;
    } else if (name == kRankGenerators) {
      parts.rank_generators = tensor;
    } else if (name == kRankGpuGenerators) {
      parts.rank_gpu_generators = tensor;
    } else if (name.starts_with(kAveragePrefix)) {
      parts.averages.emplace_back(name.substr(std::string_view(kAveragePrefix).size()), tensor);
    } else {
      (name.starts_with(kPrefix) ? parts.optimizer : parts.module).emplace_back(name, tensor);
    }
  }
  return parts;
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
                fmt::format("{} has checkpoint format '{}', this program reads format {}", path.string(),
                            version->second, kVersion));
  }
}

void check_optimizer(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata,
                     const torch::optim::Optimizer& optimizer) {
  const auto found = metadata.find(kOptimizerKey);
  const std::string saved = found == metadata.end() ? kDefaultOptimizer : found->second;
  const std::string given = optimizer_name(optimizer);
  if (saved != given)
    throw Error(
        ErrorKind::kCheckpoint,
        fmt::format("{} holds the state of the optimizer {}, this run has {}: use {}, or begin a new run "
                    "from the weights alone (train::load_weights)",
                    path.string(), saved, given, saved));
}

/// Returns the entry `key`, which must be a whole number from `low` to `high`: a tampered one would be used
/// as a size or an index.
int64_t number_within(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata,
                      const char* key, int64_t low, int64_t high) {
  const auto value = number<int64_t>(path, metadata, key);
  if (value < low || value > high)
    throw Error(ErrorKind::kCheckpoint,
                fmt::format("{}: the entry '{}' must be a number from {} to {}, got {}; the file is damaged",
                            path.string(), key, low, high, value));
  return value;
}

amp::GradScalerState read_scaler(const std::filesystem::path& path,
                                 const std::map<std::string, std::string>& metadata) {
  constexpr int64_t kMostSteps = INT32_MAX / 2;  // the scaler counts on in 32 bits
  const auto scale = number<double>(path, metadata, "loss_scale");
  if (!(scale > 0) || !std::isfinite(scale))
    throw Error(
        ErrorKind::kCheckpoint,
        fmt::format("{}: the entry 'loss_scale' must be above 0 and finite, got {}; the file is damaged",
                    path.string(), scale));
  return {scale, number_within(path, metadata, "growth_tracker", 0, kMostSteps),
          number_within(path, metadata, "skipped_in_a_row", 0, kMostSteps)};
}

/// Throws unless `diff`, the difference between the file and `what`, is empty.
void require_fit(const std::filesystem::path& path, const char* what, const nn::StateDictDiff& diff,
                 const char* way_out) {
  if (!diff.empty())
    throw Error(ErrorKind::kCheckpoint,
                fmt::format("{} does not fit the {}: {}; {}", path.string(), what, diff.text(), way_out));
}

RunState read_state(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata) {
  RunState state;
  constexpr int64_t kMost = int64_t{1} << 48;  // a product of such counts stays far below 2^63 in practice
  state.step = number_within(path, metadata, "step", 0, kMost);
  state.batches_per_epoch = number_within(path, metadata, "batches_per_epoch", 0, kMost);
  state.batch_size = number_within(path, metadata, "batch_size", 0, kMost);
  state.seed = number<uint64_t>(path, metadata, "seed");
  if (const auto precision = metadata.find("precision"); precision != metadata.end())
    state.precision = precision->second;
  if (const auto order = metadata.find(kOrderKey); order != metadata.end()) state.order = order->second;
  if (const auto data = metadata.find(kDataKey); data != metadata.end()) state.data = data->second;
  if (metadata.contains("loss_scale"))
    state.scaling = {read_scaler(path, metadata), number_within(path, metadata, "skipped_steps", 0, kMost),
                     number_within(path, metadata, "choose_scale", 0, 1) != 0};
  if (const auto best = metadata.find(kBestValueKey); best != metadata.end()) {
    state.best.emplace();
    if (best->second != kNoBest) state.best->value = number<double>(path, metadata, kBestValueKey);
    state.best->step = number_within(path, metadata, kBestStepKey, 0, kMost);
    state.best->evaluations_since = number_within(path, metadata, kBestAgeKey, 0, kMost);
  }
  state.metadata = metadata;
  for (const char* key : kReserved) state.metadata.erase(key);
  return state;
}

/// Throws Error(kCheckpoint) unless module and optimizer have the names, shapes and types of the file.
OptimizerStateLoader check_fit(const std::filesystem::path& path, const Parts& parts,
                               const nn::StateDict& tensors, const torch::nn::Module& module,
                               torch::optim::Optimizer& optimizer) {
  require_fit(path, "model", nn::compare(parts.module, tensors, /*same_dtype=*/true), kWayOut);
  if (!parts.averages.empty()) {
    nn::StateDict averaged = tensors;
    std::erase_if(averaged, [](const auto& entry) { return !entry.second.is_floating_point(); });
    require_fit(path, "averages of the model", nn::compare(parts.averages, averaged, /*same_dtype=*/true),
                kWayOut);
  }
  nn::StateDictDiff diff;
  OptimizerStateLoader loader(optimizer, module, parts.optimizer, kPrefix, diff);
  require_fit(path, "optimizer", diff, kOptimizerWayOut);
  if (!parts.generator.defined())
    throw Error(ErrorKind::kCheckpoint,
                fmt::format("{} lacks the state of libtorch's generator ({}); the file is damaged",
                            path.string(), kGenerator));
  return loader;
}

}  // namespace

GeneratorStates generator_states(const torch::nn::Module& module) {
  GeneratorStates states{bytes_of(at::detail::getDefaultCPUGenerator().get_state()), ""};
  if (const auto generator = gpu_generator(module)) states.gpu = bytes_of(generator->get_state());
  return states;
}

void set_generator_states(const torch::nn::Module& module, const GeneratorStates& states,
                          const std::string& where) {
  set_states(module, tensor_of(states.cpu), states.gpu.empty() ? at::Tensor() : tensor_of(states.gpu), where);
}

void require_same_data(const std::filesystem::path& checkpoint, const std::string& saved,
                       const std::string& now) {
  require(
      saved.empty() || now.empty() || saved == now,
      fmt::format("{} was made with the training data {}, this run reads {} (number, names and sizes of the "
                  "files): restore the data, or begin a new run",
                  checkpoint.string(), saved, now));
}

void save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& module,
                     const torch::optim::Optimizer& optimizer, const RunState& state) {
  for (const char* key : kReserved)
    require(
        !state.metadata.contains(key),
        fmt::format("a checkpoint writes the entry '{}' of its metadata itself, got one of the same name in "
                    "RunState::metadata: give yours another name",
                    key));
  io::Safetensors file;
  file.metadata = state.metadata;
  file.metadata["format"] = "pt";
  file.metadata[kVersionKey] = kVersion;
  file.metadata["step"] = std::to_string(state.step);
  if (state.batches_per_epoch > 0) {
    file.metadata["epoch"] = std::to_string(state.step / state.batches_per_epoch);
    file.metadata["batch"] = std::to_string(state.step % state.batches_per_epoch);
  }
  file.metadata["batches_per_epoch"] = std::to_string(state.batches_per_epoch);
  file.metadata["batch_size"] = std::to_string(state.batch_size);
  file.metadata["seed"] = std::to_string(state.seed);
  const std::string name_of_optimizer = optimizer_name(optimizer);
  if (name_of_optimizer != kDefaultOptimizer) file.metadata[kOptimizerKey] = name_of_optimizer;
  if (!state.order.empty()) file.metadata[kOrderKey] = state.order;
  if (!state.data.empty()) file.metadata[kDataKey] = state.data;
  if (state.precision != "f32") file.metadata["precision"] = state.precision;
  if (state.scaling) {
    const amp::GradScalerState& scaler = state.scaling->scaler;
    file.metadata["loss_scale"] = fmt::format("{}", scaler.scale);
    file.metadata["growth_tracker"] = std::to_string(scaler.growth_tracker);
    file.metadata["skipped_in_a_row"] = std::to_string(scaler.skipped_in_a_row);
    file.metadata["skipped_steps"] = std::to_string(state.scaling->skipped_steps);
    file.metadata["choose_scale"] = state.scaling->choose ? "1" : "0";
  }

  if (state.best) {
    file.metadata[kBestValueKey] = state.best->value ? fmt::format("{}", *state.best->value) : kNoBest;
    file.metadata[kBestStepKey] = std::to_string(state.best->step);
    file.metadata[kBestAgeKey] = std::to_string(state.best->evaluations_since);
  }

  for (const auto& [name, tensor] : nn::state_dict(module)) file.tensors.emplace_back(name, tensor.detach());
  for (auto& [name, tensor] : optimizer_state(optimizer, module))
    file.tensors.emplace_back(kPrefix + name, std::move(tensor));
  for (const auto& [name, tensor] : state.averages) file.tensors.emplace_back(kAveragePrefix + name, tensor);
  for (const auto& [name, tensor] : file.tensors) require_finite(name, tensor, state.step);
  file.tensors.emplace_back(kGenerator, at::detail::getDefaultCPUGenerator().get_state());
  if (const auto generator = gpu_generator(module))
    file.tensors.emplace_back(kGpuGenerator, generator->get_state());
  if (!state.other_ranks.empty()) {
    file.tensors.emplace_back(kRankGenerators, rows_of(state.other_ranks, &GeneratorStates::cpu));
    if (!state.other_ranks[0].gpu.empty())
      file.tensors.emplace_back(kRankGpuGenerators, rows_of(state.other_ranks, &GeneratorStates::gpu));
  }
  io::write_safetensors(path, file);
}

RunState load_checkpoint(const std::filesystem::path& path, torch::nn::Module& module,
                         torch::optim::Optimizer& optimizer) {
  // The header alone decides whether the file fits: a file of gigabytes is refused at once.
  const io::Safetensors header = io::read_safetensors_header(path);
  check_version(path, header.metadata);
  check_optimizer(path, header.metadata, optimizer);
  RunState state = read_state(path, header.metadata);
  const nn::StateDict tensors = nn::state_dict(module);
  check_fit(path, split(header.tensors), tensors, module, optimizer);

  const io::Safetensors file = io::read_safetensors(path);
  Parts parts = split(file.tensors);
  OptimizerStateLoader optimizer_loader = check_fit(path, parts, tensors, module, optimizer);

  read_rows(parts.rank_generators, &GeneratorStates::cpu, state.other_ranks, path);
  read_rows(parts.rank_gpu_generators, &GeneratorStates::gpu, state.other_ranks, path);
  set_states(module, parts.generator, parts.gpu_generator, path.string());
  nn::load_state_dict(tensors, parts.module);
  optimizer_loader.load();
  state.averages = std::move(parts.averages);
  return state;
}

void load_weights(const std::filesystem::path& path, torch::nn::Module& module) {
  nn::LoadOptions options;
  options.source = path.string();
  options.way_out = kWayOut;
  const nn::StateDict wanted = nn::state_dict(module);
  const auto check = [&](const io::Safetensors& header) {
    nn::check_fit(split(header.tensors).module, wanted, options);
  };
  nn::load_state_dict(wanted, split(io::read_state_dict(path, check).tensors).module, options);
}

bool take_averages(nn::StateDict& tensors) {
  std::map<std::string, at::Tensor> averages;
  std::erase_if(tensors, [&](const auto& entry) {
    if (!entry.first.starts_with(kAveragePrefix)) return false;
    averages.emplace(entry.first.substr(std::string_view(kAveragePrefix).size()), entry.second);
    return true;
  });
  for (auto& [name, tensor] : tensors)
    if (const auto average = averages.find(name); average != averages.end()) tensor = average->second;
  return !averages.empty();
}

std::map<std::string, std::string> read_checkpoint_metadata(const std::filesystem::path& path) {
  return io::read_safetensors_header(path).metadata;
}

}  // namespace palimpsest::train
