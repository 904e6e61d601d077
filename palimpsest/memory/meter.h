#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

namespace palimpsest::memory {

class SharedPeak;

/// Measures the memory of one training step (docs/memory.md defines kept and peak bytes):
///   Meter meter;
///   loss = ...;                     // forward
///   meter.forward_done();
///   loss.backward(), sgd.step();
///   ... meter.kept_bytes(), meter.peak_bytes() ...
/// On the CPU it reads the counting allocator, on another device libtorch's caching allocator; memory that
/// these cache for reuse does not count. Meters may nest and run in several threads: each reads the bytes of
/// all threads and has a peak of its own. (On a CUDA device a peak is exact if no other thread allocates
/// while a Meter is made.)
/// Throws std::logic_error if the counting allocator is not installed, or if the caching allocator has not
/// taken any memory of the device yet.
class Meter {
 public:
  /// Notes the live bytes of the device and starts a peak.
  explicit Meter(c10::Device device = c10::DeviceType::CPU);
  void forward_done();  ///< notes the live bytes again; the loss must be alive
  /// Saved for backward: live bytes after forward minus those before, both without the blocks of background threads
  /// (mark_background_thread).
  int64_t kept_bytes() const;
  int64_t peak_bytes() const;     ///< highest live bytes since the constructor, with parameters
  int64_t base_bytes() const;     ///< live bytes at the constructor
  int64_t current_bytes() const;  ///< live bytes now

 private:
  c10::Device device_;
  std::shared_ptr<const SharedPeak> peak_;
  int64_t base_ = 0;
  int64_t foreground_ = 0;  // base_ without the blocks of background threads
  int64_t kept_ = 0;
};

}  // namespace palimpsest::memory
