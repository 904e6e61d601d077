#pragma once

#include "palimpsest/train/mixed_precision.h"

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace palimpsest::train {

/// Where a run stands, besides its tensors. The learning rate is a function of `step`, the order of the data
/// one of (seed, epoch), and the epoch is step / batches_per_epoch: nothing else needs to be kept.
struct RunState {
  int64_t step = 0;  ///< steps done
  int64_t batches_per_epoch = 0;
  int64_t batch_size = 0;
  uint64_t seed = 0;
  /// What the user wants to find in the file: "config" (TOML), "model", "strategy", ... Not "step", "epoch",
  /// "batch", "batches_per_epoch", "batch_size", "seed", "format", "palimpsest_checkpoint", "precision",
  /// "loss_scale", "growth_tracker", "skipped_in_a_row", "skipped_steps" or "choose_scale": these are ours.
  std::map<std::string, std::string> metadata;
  std::string precision = "f32";                 ///< what was computed in
  std::optional<MixedPrecision::State> scaling;  ///< f16: loss scale and what belongs to it
};

/// Writes a training checkpoint: a safetensors file, replaced atomically, the same bytes for the same run.
///   tensors   NAME                        every parameter and buffer, under the name that libtorch gives it
///   and in
///                                         module order: any safetensors reader sees an ordinary state dict
///             palimpsest.momentum.NAME    SGD's momentum of parameter NAME (none before the first step)
///             palimpsest.generator        u8: state of libtorch's default CPU generator
///   metadata  palimpsest_checkpoint = 1 (version of this list), format = pt, and the members of RunState;
///             epoch and batch (the position in it) are written for the reader's comfort; precision and the
///             members of `scaling` where they are not f32's
/// Throws Error(kOutput) when the file cannot be written and Error(kDiverged), naming the tensor and the
/// step, when a value is NaN or infinite; either way the file that was there stays.
void save_checkpoint(const std::filesystem::path& path, const torch::nn::Module& model,
                     const torch::optim::SGD& optimizer, const RunState& state);

/// Restores what save_checkpoint wrote: parameters, buffers, momentum and generator bit for bit, in place
/// (strides and addresses of the parameters stay). Changes nothing unless everything fits. Throws
/// Error(kCheckpoint) for a missing, truncated or foreign file, for weights that are no training checkpoint,
/// for another dtype, and for another architecture: then it counts and names the missing, unexpected and
/// differently shaped keys.
RunState load_checkpoint(const std::filesystem::path& path, torch::nn::Module& model,
                         torch::optim::SGD& optimizer);

/// Loads parameters and buffers only, from a training checkpoint or from any safetensors state dict
/// (torchvision's names, say), converted to the model's dtype. `num_batches_tracked` may be missing or left
/// over. Same errors.
void load_weights(const std::filesystem::path& path, torch::nn::Module& model);

/// A file's metadata: what `RunState::metadata` was and our own entries. Empty for a plain state dict.
std::map<std::string, std::string> read_checkpoint_metadata(const std::filesystem::path& path);

}  // namespace palimpsest::train
