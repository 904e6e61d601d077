#pragma once

#include <utility>

namespace palimpsest {

/// This thread's value of recomputing(). The dynamic linker merges inline variables, so the program and all
/// of its shared libraries see the same variable.
inline thread_local bool recomputing_now = false;

/// Returns whether this thread runs a segment of the network again for its backward pass
/// (memory/recompute.h). The first run counted the batch, so a layer must leave its running statistics and
/// its count of batches as they are. Everything else, saved tensors included, is as in the first run.
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
