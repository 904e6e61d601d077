#pragma once

#include <utility>

namespace palimpsest {

/// Of this thread; one for the program and all shared libraries in it, as the dynamic linker joins inline
/// variables.
inline thread_local bool recomputing_now = false;

/// Whether this thread runs a part of the network again, to recover what it did not keep
/// (memory/recompute.h). A batch that is seen again must not count twice: a layer with running statistics
/// reads this and leaves them, and its count of batches, as they are. All else goes as in the first run,
/// saved tensors included.
inline bool recomputing() noexcept {
  return recomputing_now;
}

/// Says so on this thread until the end of the scope; scopes nest.
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
