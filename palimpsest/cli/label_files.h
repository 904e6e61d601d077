#pragma once

#include "palimpsest/cli/options.h"
#include "palimpsest/data/label_encoding.h"

namespace palimpsest::cli {

/// Returns the encoding that --labels names. Throws Error(kUsage) if the data set has no official ids, or not
/// those of the network's classes, and for more than 256 classes.
data::LabelEncoding make_label_encoding(const Options& options);

}  // namespace palimpsest::cli
