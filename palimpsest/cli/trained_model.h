#pragma once

#include "palimpsest/cli/options.h"
#include "palimpsest/nn/model.h"

#include <memory>

namespace palimpsest::cli {

/// The model of options.run.checkpoint with its weights, in eval mode, in the options' dtype and layout;
/// folded (models/fold.h) if the file is. The options hold the checkpoint's own configuration already
/// (cli/command_line.h). Throws Error(kCheckpoint): missing, truncated, foreign, or of another architecture
/// (then it names the keys).
std::shared_ptr<nn::Model> load_trained_model(const Options& options);

}  // namespace palimpsest::cli
