#pragma once

#include "palimpsest/nn/state_dict.h"
#include "palimpsest/train/best.h"
#include "palimpsest/train/step.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::train {

/// The name of the checkpoint in the output folder of a training.
inline constexpr const char* kCheckpointFile = "checkpoint.safetensors";
/// The names of the log (report/run_log.h), of the configuration and of the chart of gradients beside it.
inline constexpr const char* kLogFile = "log.jsonl";
inline constexpr const char* kConfigFile = "config.toml";
inline constexpr const char* kExponentsFile = "exponents.svg";
/// The entries of a checkpoint's metadata that hold RunState::order and RunState::data.
inline constexpr const char* kOrderKey = "palimpsest_order";
inline constexpr const char* kDataKey = "palimpsest_data";

/// The states of libtorch's default generators of one process, as bytes.
struct GeneratorStates {
  std::string cpu;
  std::string gpu;  ///< of the GPU that holds the parameters; "" without one
};
/// Returns the states in this process; `module` decides whether there is a GPU's.
GeneratorStates generator_states(const torch::nn::Module& module);
/// Restores states that generator_states returned. Leaves the generator of the GPU as it is if there is no
/// state of it, or no GPU now. Throws Error(kCheckpoint), whose text begins with `where`, for bytes that are
/// no state.
void set_generator_states(const torch::nn::Module& module, const GeneratorStates& states,
                          const std::string& where);

/// The state of a run beside its tensors. The learning rate is a function of `step`, the order of the data is
/// a function of (seed, epoch), and the epoch is step / batches_per_epoch: nothing else needs to be saved.
struct RunState {
  int64_t step = 0;               ///< steps done
  int64_t batches_per_epoch = 0;  ///< 0: not known; the file then names no epoch
  int64_t batch_size = 0;
  uint64_t seed = 0;
  /// Entries of the user's: "config" (TOML), "model", "strategy", ... save_checkpoint refuses these reserved
  /// names: "step", "epoch", "batch", "batches_per_epoch", "batch_size", "seed", "format",
  /// "palimpsest_checkpoint", "palimpsest_order", "palimpsest_data", "palimpsest_optimizer", "precision",
  /// "palimpsest_best_value", "palimpsest_best_step", "palimpsest_best_age", "loss_scale", "growth_tracker",
  /// "skipped_in_a_row", "skipped_steps", "choose_scale".
  std::map<std::string, std::string> metadata = {};
  std::string precision = "f32";                      ///< of the computation
  std::optional<Step::State> scaling = std::nullopt;  ///< f16: state of the loss scale
  std::string order = {};  ///< BatchSource::order(); "" in the files of older programs
  std::string data = {};   ///< BatchSource::identity(): which examples the run is trained on; "": not known
  /// In a run of several processes: the generators of ranks 1, 2, ... The process that saves and loads is
  /// rank 0. All have a state of a GPU, or none has.
  std::vector<GeneratorStates> other_ranks = {};
  /// Averages of parameters and buffers, by their names (train/ema.h); empty: the run has none.
  nn::StateDict averages = {};
  /// The best evaluation before the checkpoint; nothing: the run looks for none.
  std::optional<BestState> best = std::nullopt;
};

/// Writes a training checkpoint of any module with SGD, Adam, AdamW, RMSprop or Adagrad: a safetensors file
/// that replaces `path` atomically. The same run gives the same bytes.
///   tensors   NAME                       every parameter and buffer under libtorch's name, in module order:
///                                        any safetensors reader sees an ordinary state dict
///             palimpsest.FIELD.NAME      the optimizer's state of parameter NAME (train/optimizer_state.h)
///             palimpsest.ema.NAME        RunState::averages
///             palimpsest.generator       u8: state of libtorch's default CPU generator
///             palimpsest.generator.cuda  u8: state of the generator of the GPU that holds the parameters
///             palimpsest.generator.ranks, palimpsest.generator.cuda.ranks
///                                        u8 (ranks - 1, bytes): those of ranks 1, 2, ...; if there are
///                                        several ranks
///   metadata  palimpsest_checkpoint = 1 (version of this list), format = pt, the members of RunState, and
///             for human readers epoch and batch (the position in the epoch). palimpsest_optimizer (default
///             SGD), precision (default f32), palimpsest_order and palimpsest_data (default ""), the members
///             of `best` (palimpsest_best_...) and of `scaling` (default none) are left out if they have
///             their default.
/// Throws Error(kOutput) if the file cannot be written; Error(kDiverged), naming tensor and step, if a value
/// is NaN or infinite; and Error(kUsage) for a reserved name in `state.metadata`, for an optimizer whose
/// state cannot be saved, and for one with parameters that `module` lacks. The old file then remains.
void save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& module,
                     const torch::optim::Optimizer& optimizer, const RunState& state);

/// Restores the state that save_checkpoint wrote, bit for bit: parameters and buffers in place (strides and
/// addresses stay), optimizer state and generators. Returns the averages as tensors of the file. The
/// optimizer's options stay the caller's: the file does not hold the learning rate, momentum, amsgrad and so
/// on. State that the options do not use (of amsgrad, of a momentum) is loaded but not read. State of
/// parameters that `optimizer` does not hold is ignored: it may hold fewer than the one that was saved.
/// Changes nothing unless everything fits. Throws Error(kCheckpoint) for a missing, truncated or foreign
/// file, for weights without training state, for another optimizer or dtype, for options that need state that
/// the file lacks, and for another architecture, with the number and the names of the missing, unexpected and
/// mismatched keys.
RunState load_checkpoint(const std::filesystem::path& path, torch::nn::Module& module,
                         torch::optim::Optimizer& optimizer);

/// Loads parameters and buffers from a training checkpoint or any state dict: safetensors, or a file of
/// torch.save (io/state_dict.h). Tensors convert to the module's dtype. num_batches_tracked may be missing or
/// left over. Throws Error(kCheckpoint) as load_checkpoint does.
void load_weights(const std::filesystem::path& path, torch::nn::Module& module);

/// Replaces the tensors of a checkpoint that have an average (palimpsest.ema.NAME) by it: the averaged
/// network. Removes the averages. Returns whether there were any; if not, changes nothing.
bool take_averages(nn::StateDict& tensors);

/// Throws Error(kUsage) if `now`, the identity of a resumed run's examples (BatchSource::identity), is
/// another one than `saved`, that of the checkpoint. "" is not known.
void require_same_data(const std::filesystem::path& checkpoint, const std::string& saved,
                       const std::string& now);

/// Returns a file's metadata: RunState::metadata and the reserved entries. A plain state dict has none.
std::map<std::string, std::string> read_checkpoint_metadata(const std::filesystem::path& path);

}  // namespace palimpsest::train
