#pragma once

#include <cstdint>

namespace palimpsest::memory {

/// Measures one training step (docs/memory.md says what kept and peak mean):
///   Meter meter; loss = ...forward...; meter.forward_done(); backward; step; meter.kept_bytes(),
///   meter.peak_bytes()
/// Needs the counting allocator; throws std::logic_error where it is not installed.
class Meter {
 public:
  Meter();                     ///< notes the live bytes and resets the peak
  void forward_done();         ///< notes the live bytes again, with the loss alive
  int64_t kept_bytes() const;  ///< live after the forward pass minus live before it: saved for backward
  int64_t peak_bytes() const;  ///< highest live bytes since the constructor, parameters and all
  int64_t base_bytes() const;  ///< live bytes at the constructor

 private:
  int64_t base_ = 0;
  int64_t kept_ = 0;
};

}  // namespace palimpsest::memory
