#pragma once

#include <cstdint>

namespace palimpsest::memory {

constexpr int64_t kMiB = int64_t{1} << 20;

}  // namespace palimpsest::memory
