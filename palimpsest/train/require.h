#pragma once

#include "palimpsest/base/error.h"

#include <string>

namespace palimpsest::train {

/// Throws the usage error `message` unless `condition` holds.
inline void require(bool condition, const std::string& message) {
  if (!condition) throw Error(ErrorKind::kUsage, message);
}

}  // namespace palimpsest::train
