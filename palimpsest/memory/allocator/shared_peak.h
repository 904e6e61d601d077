#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <mutex>

namespace palimpsest::memory {

/// A device counts one peak of its live bytes. This is one of several views of that peak, each since its own
/// start. Copies share the view.
class SharedPeak {
 public:
  /// Starts at the present live bytes. `user` is named in errors (device_allocator).
  SharedPeak(const char* user, c10::Device device);
  /// Returns the highest live bytes since the start, over all threads.
  int64_t bytes() const;

  struct Record;

 private:
  std::shared_ptr<Record> record_;
};

/// Guards all SharedPeaks. For a fork: no thread is within one.
std::mutex& shared_peak_mutex();

/// Restarts the device's own peak. Every SharedPeak that is alive keeps what it has seen.
void restart_peak(const char* user, c10::Device device);

}  // namespace palimpsest::memory
