#pragma once

#include <c10/core/Device.h>

#include <string>

namespace palimpsest::train {

/// "cpu", "cuda" (the first GPU) or "cuda:N", with its index. Throws Error(kUsage), saying what to do, for
/// another text, for a GPU where this build has no kernels for one, and for one that libtorch does not find.
c10::Device parse_device(const std::string& text);

}  // namespace palimpsest::train
