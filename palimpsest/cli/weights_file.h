#pragma once

#include "palimpsest/cli/options.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/nn/state_dict.h"

#include <filesystem>
#include <memory>

// Files of weights as the commands read and write them. A file of ours holds its network's description.
namespace palimpsest::cli {

/// Makes the model of options.run.checkpoint with its weights, in eval mode, with the options' dtype and
/// layout. The weights are the averages (train/ema.h) if the file has any, unless run.without_average; that
/// without any is an Error(kUsage). The model is folded (models/fold.h) if the weights in the file are. The options must already hold the
/// configuration of the checkpoint (cli/command_line.h). Throws Error(kCheckpoint) if the file is missing,
/// truncated, foreign, or of another architecture (then it names the keys).
std::shared_ptr<nn::Model> load_trained_model(const Options& options);

/// Returns the checkpoint in a run's folder. Any other path is returned unchanged. Throws Error(kCheckpoint) for a
/// folder without one, and names those in it: the folder of a comparison holds runs.
std::string checkpoint_at(const std::string& path);

/// Throws Error(kCheckpoint) if the file's tensors, of which only the shapes are read, are fewer than the network
/// has or lack a classifier for that number of classes. Call it before the model is made: a file of a few bytes
/// may claim layers or classes for terabytes.
void check_claims(const Options& options, const nn::StateDict& tensors, const std::string& source);

/// Loads options.model.weights, if any, into a freshly made model: the averages, if the file has any. Unless
/// quiet, standard error says which part was loaded, and whether the file's network had another activation, other
/// class names, or poolings in place of strides. Throws Error(kCheckpoint) if the
/// file is missing, damaged, one of torch.save (import it first), folded, or does not fit.
void start_from_weights(const Options& options, nn::Model& model);

/// Throws Error(kUsage) if --output is not given, and throws as check_output_file does. Changes nothing.
void check_weights_file(const Options& options);

/// Writes `tensors` to options.run.file, atomically. Metadata: format = pt, model, classes, activation, slope
/// (leaky ReLU's, or ELU's alpha), eps of the normalizations, config (to_toml(options, kRun), so that eval,
/// predict and train accept the file), and folded = true if normalizations were folded into the convolutions.
void write_weights(const Options& options, const nn::Model& model, nn::StateDict tensors, bool folded);

/// Returns "relu", or "leaky_relu with slope 0.01".
std::string activation_text(const Options& options);

/// Returns "resnet18, 1000 classes, leaky_relu with slope 0.01".
std::string describe_network(const Options& options);

}  // namespace palimpsest::cli
