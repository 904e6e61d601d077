#pragma once

#include <vector>

namespace palimpsest::testing {

/// Prepares the process before GoogleTest starts. A program may have several, in any order. Returns 0 to go
/// on, or the exit status to end with.
using Preparation = int (*)();

inline std::vector<Preparation>& preparations() {
  static std::vector<Preparation> all;
  return all;
}

/// `const Prepare kAnyName{...}` in a source of the program adds a preparation.
struct Prepare {
  explicit Prepare(Preparation preparation) { preparations().push_back(preparation); }
};

}  // namespace palimpsest::testing
