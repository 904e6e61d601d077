#pragma once

#include "palimpsest/cli/options.h"
#include "palimpsest/models/weights.h"
#include "palimpsest/nn/model.h"

#include <filesystem>

namespace palimpsest::cli {

// What import and export write: a safetensors state dict that says of itself which network it is.

/// Throws Error(kUsage) without --output or when that is `source` itself, Error(kOutput) when the file exists
/// and --overwrite is not given. Looks, changes nothing.
void check_weights_file(const Options& options, const std::filesystem::path& source);

/// Writes `tensors` to options.run.file, atomically. Metadata: format = pt, model, classes, activation, slope
/// (leaky ReLU's, or ELU's alpha), eps of the normalizations, config (to_toml(options), so that eval, predict
/// and train accept the file), and folded = true where normalizations went into the convolutions.
void write_weights(const Options& options, const nn::Model& model, models::NamedTensors tensors, bool folded);

/// "resnet18, 1000 classes, leaky_relu with slope 0.01".
std::string describe_network(const Options& options);

/// Loads options.model.weights, if any, into a freshly made model, and says on standard error (unless quiet)
/// what was taken over, and when the file's network had another activation. Throws Error(kCheckpoint): the
/// file is missing, damaged, one of torch.save (import it first), folded, or does not fit.
void start_from_weights(const Options& options, nn::Model& model);

}  // namespace palimpsest::cli
