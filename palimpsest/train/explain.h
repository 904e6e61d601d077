#pragma once

#include <string>

namespace palimpsest::train {

/// Call it in a catch block: rethrows the exception in flight, as an Error with a way out where the cause is
/// one that a user can do something about.
///   out of memory (the system's, or the limit that was set)     Error(kMemory): smaller batch or crop,
///   inplace one value per channel in a normalization while training     Error(kUsage): larger batch or crop
/// Anything else passes unchanged. `doing` says where: "step 3 (16 images of 3 x 512 x 512)".
[[noreturn]] void rethrow_explained(const std::string& doing);

}  // namespace palimpsest::train
