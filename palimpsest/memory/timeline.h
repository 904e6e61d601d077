#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::memory {

/// Records live bytes over time while it is alive: one sample an allocation or free, and one at each end.
/// Times never decrease. Data only: io/svg draws it.
///   On the CPU it reads the counting allocator, over all threads; the largest sample is the peak of that
/// span. At most one at a time: a second one throws std::logic_error, as does one without that allocator.
/// While none is recording it costs an allocation one load of a flag.
///   On another device it hears of libtorch's caching allocator as its profiler does: samples are taken on
/// this thread and on those that run backward passes for it, and have what all threads hold. Seconds are
/// those of the host, which runs ahead of the device as the allocator does. stop() belongs on the same
/// thread. std::logic_error while a profiler or another such Timeline records memory on this thread, and
/// where there is no such allocator or it has no memory of the device yet.
class Timeline {
 public:
  struct Sample {
    double seconds;         ///< since the constructor
    int64_t current_bytes;  ///< live after this event
  };
  struct Mark {
    double seconds;
    std::string name;
  };

  explicit Timeline(c10::Device device = c10::DeviceType::CPU);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void mark(std::string name);  ///< names the moment, e.g. "forward", "backward", "step"; from one thread
  void stop();                  ///< no more samples; a second call does nothing
  const std::vector<Sample>& samples() const { return samples_; }  ///< after stop()
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
