#pragma once

#include "palimpsest/cli/options.h"
#include "palimpsest/data/class_uniform.h"

namespace palimpsest::cli {

/// Returns the classes of the training images for the sampler class_uniform: from the file
/// class_presence.safetensors in data.cache, or in the output folder if that is empty. A file that is
/// missing, damaged, of other data or of another ignore id is built again by data.workers threads, with a
/// line of progress unless quiet, and written by rank 0. With bad_images = skip, images whose label cannot be
/// read have no class; a line names them, and no file is written. The index of generated scenes is built each
/// time.
data::ClassPresence class_index(const Options& options, const data::Dataset& dataset);

}  // namespace palimpsest::cli
