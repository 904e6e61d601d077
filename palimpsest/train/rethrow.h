#pragma once

#include <string>

namespace palimpsest::train {

/// Call it in a catch block. Rethrows the current exception, as an Error with a way out where the user can do
/// something about the cause:
///   memory runs out (the system's, or a limit that was set)   Error(kMemory): a smaller batch or crop, or
///                                                             strategy
///                                                             inplace
///   one value per channel in a normalization that trains      Error(kUsage): a larger batch or crop
/// Any other exception passes unchanged. `doing` names the work: "step 3 (16 images of 3 x 512 x 512)".
[[noreturn]] void rethrow_explained(const std::string& doing);

}  // namespace palimpsest::train
