#pragma once

#include "palimpsest/train/batch_source.h"
#include "palimpsest/train/checkpoint.h"
#include "palimpsest/train/step.h"
#include "palimpsest/train/trainer.h"

#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest::train {

/// Throws Error(kUsage) unless `source` has the seed, sizes and order of the data that the run of `state`
/// had. `checkpoint`: the file, for the message.
void require_same_order(const std::filesystem::path& checkpoint, const RunState& state,
                        const BatchSource& source);

/// Returns what is to be told of a run that goes on in another precision, or with another number of ranks.
std::vector<std::string> notes_on_resuming(const RunState& state, const TrainerOptions& options,
                                           const Step& step, int rank, int ranks);

}  // namespace palimpsest::train
