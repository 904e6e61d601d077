#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace palimpsest::memory {

/// Measures one training step (docs/memory.md says what kept and peak mean):
///   Meter meter; loss = ...forward...; meter.forward_done(); backward; step; meter.kept_bytes(),
///   meter.peak_bytes()
/// On the CPU it reads the counting allocator, on another device libtorch's caching allocator (allocated
/// bytes, not those it has put by); std::logic_error where that one is not installed, or has no memory of the
/// device yet.
class Meter {
 public:
  /// Notes the live bytes of the device and resets the peak.
  explicit Meter(c10::Device device = c10::DeviceType::CPU);
  void forward_done();            ///< notes the live bytes again, with the loss alive
  int64_t kept_bytes() const;     ///< live after the forward pass minus live before it: saved for backward
  int64_t peak_bytes() const;     ///< highest live bytes since the constructor, parameters and all
  int64_t base_bytes() const;     ///< live bytes at the constructor
  int64_t current_bytes() const;  ///< live bytes now

 private:
  c10::Device device_;
  int64_t base_ = 0;
  int64_t kept_ = 0;
};

}  // namespace palimpsest::memory
