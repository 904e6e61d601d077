#pragma once

#include "palimpsest/data/check.h"

#include <filesystem>

// `data check` of tar archives (data/webdataset.h).
namespace palimpsest::data::checks {

/// Returns whether the folder, or a folder in it, holds .tar files.
bool holds_shards(const std::filesystem::path& root);

/// Checks the shards of a folder. A split is a folder of .tar files, or the files in `root` whose names
/// differ in a number alone, "train-{000000..000146}.tar". Each of the labels that the examples of a split
/// have, .cls and .seg.png, has a check of its own, because a network reads one of them. The headers and the
/// .cls are read in any case, one shard after another. Faults: a shard that is missing between two others,
/// truncated or damaged; an example without image or label; a label beyond the number of `classes` (0: it is not
/// known, and no label is too large). No index is read or written. Throws Error(kData) if the folder holds no shard.
void check_shards(DataCheck& result, const std::filesystem::path& root, int64_t classes,
                  const CheckOptions& options);

}  // namespace palimpsest::data::checks
