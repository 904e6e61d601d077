#pragma once

#include <string>

namespace palimpsest::train {

/// Rethrows the current exception; call it in a catch block. Two causes become an Error with a way out:
///   the system's memory, or a memory limit, is exhausted   Error(kMemory): take a smaller batch or crop, or
///                                                          strategy inplace
///   a normalization that trains has one value per channel  Error(kUsage): take a larger batch or crop
/// Any other exception passes unchanged. `doing` names the work: "step 3 (16 images of 3 x 512 x 512)".
[[noreturn]] void rethrow_explained(const std::string& doing);

}  // namespace palimpsest::train
