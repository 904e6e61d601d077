#pragma once

namespace palimpsest::ops {

/// Whether this thread runs a part of the network again, to recover what it did not keep
/// (memory/recompute.h). A batch that is seen again must not count twice: a layer with running statistics
/// reads this and leaves them, and its count of batches, as they are. All else goes as in the first run,
/// saved tensors included.
bool recomputing() noexcept;

/// Says so on this thread until the end of the scope; scopes nest.
class RecomputingGuard {
 public:
  RecomputingGuard() noexcept;
  ~RecomputingGuard();
  RecomputingGuard(const RecomputingGuard&) = delete;
  RecomputingGuard& operator=(const RecomputingGuard&) = delete;

 private:
  bool before_;
};

}  // namespace palimpsest::ops
