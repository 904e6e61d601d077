#pragma once

#include "palimpsest/train/trainer.h"

namespace palimpsest::train {

/// Returns the group if there is more than one process.
distributed::Group* group_of(const TrainerOptions& options);

/// Throws Error(kUsage) for options of train() that cannot work with each other or with these batches.
void check_options(const TrainerOptions& options, const BatchSource& batches, const BatchSource* validation);

}  // namespace palimpsest::train
