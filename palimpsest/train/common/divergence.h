#pragma once

#include "palimpsest/base/error.h"
#include "palimpsest/train/trainer.h"

#include <string>

namespace palimpsest::train {

/// The error of a run whose loss was not finite in the step of `record`. `kept`: "; FILE of step 4 stays", or "".
Error divergence(const StepRecord& record, const std::string& kept);

/// The error of a run in f16 that has skipped Step::kHopeless steps in a row.
Error overflow(const TrainerOptions& options, const StepRecord& record, const std::string& kept);

}  // namespace palimpsest::train
