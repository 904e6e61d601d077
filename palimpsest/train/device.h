#pragma once

#include <c10/core/Device.h>

#include <string>

namespace palimpsest::train {

/// Reads "cpu", "cuda" (the first GPU) or "cuda:N" as a device with its index. Throws Error(kUsage) with the
/// way out for any other text, for a GPU if this build has no kernels for one, and for a GPU that libtorch
/// does not find.
c10::Device parse_device(const std::string& text);

}  // namespace palimpsest::train
