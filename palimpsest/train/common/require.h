#pragma once

#include "palimpsest/base/error.h"

#include <string>

namespace palimpsest::train {

/// Throws Error(kUsage) with `message` unless `condition` holds.
inline void require(bool condition, const std::string& message) {
  if (!condition) throw Error(ErrorKind::kUsage, message);
}

}  // namespace palimpsest::train
