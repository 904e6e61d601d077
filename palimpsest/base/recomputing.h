#pragma once

#include <utility>

namespace palimpsest {

/// This thread's value of recomputing(). The dynamic linker joins inline variables: the program and all of
/// its shared libraries see the same one.
inline thread_local bool recomputing_now = false;

/// True while this thread runs a segment of the network again for its backward pass (memory/recompute.h).
/// The batch was counted in the first run, so a layer with running statistics must leave them and its count
/// of batches as they are. Everything else, saved tensors included, is as in the first run.
inline bool recomputing() noexcept {
  return recomputing_now;
}

/// Sets the flag for this thread until the end of the scope. Scopes nest.
class RecomputingGuard {
 public:
  RecomputingGuard() noexcept : before_(std::exchange(recomputing_now, true)) {}
  ~RecomputingGuard() { recomputing_now = before_; }
  RecomputingGuard(const RecomputingGuard&) = delete;
  RecomputingGuard& operator=(const RecomputingGuard&) = delete;

 private:
  bool before_;
};

}  // namespace palimpsest
