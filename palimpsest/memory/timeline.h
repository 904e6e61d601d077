#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::memory {

/// Records live bytes over time while it is alive: one sample per allocation or free, and one at each end.
/// Times never decrease. A Timeline holds data only; io/svg.h draws it.
///
/// CPU: it observes the counting allocator over all threads, so the largest sample is the peak of the
/// recorded time. Only one Timeline can record at a time; while no Timeline records, an allocation costs one
/// load of a flag. Throws std::logic_error for a second Timeline, or if the allocator is not installed.
///
/// Other devices: it receives the reports of libtorch's caching allocator to a profiler. Events on this
/// thread and on the threads that run its backward passes give samples; each sample has the bytes of all
/// threads. Seconds are seconds of the host, which runs ahead of the device. Call stop() on the thread of the
/// constructor. Throws std::logic_error if a profiler or another Timeline records memory on this thread, if
/// the device has no caching allocator, or if that allocator has not taken any memory of the device yet.
class Timeline {
 public:
  struct Sample {
    double seconds;         ///< since the constructor
    int64_t current_bytes;  ///< live bytes after this event
  };
  struct Mark {
    double seconds;
    std::string name;
  };

  explicit Timeline(c10::Device device = c10::DeviceType::CPU);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Names the present moment ("forward", "backward", "step"). Make all calls on one thread.
  void mark(std::string name);
  /// Ends the recording. A second call does nothing.
  void stop();
  /// Returns the samples; none before stop().
  const std::vector<Sample>& samples() const { return samples_; }
  const std::vector<Mark>& marks() const { return marks_; }

 private:
  class Recorder;
  class HostRecorder;
  class DeviceRecorder;
  std::unique_ptr<Recorder> recorder_;  // null after stop()
  std::vector<Sample> samples_;
  std::vector<Mark> marks_;
};

}  // namespace palimpsest::memory
