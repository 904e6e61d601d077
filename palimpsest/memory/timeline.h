#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::memory {

/// Records live bytes over time while it is alive, over all threads: one sample an allocation or free, and
/// one at each end. Times never decrease; the largest sample is the peak of that span. At most one Timeline
/// at a time: a second one throws std::logic_error, as does one without the counting allocator. While none is
/// recording it costs an allocation one load of a flag. Data only: io/svg draws it.
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

  Timeline();
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void mark(std::string name);  ///< names the moment, e.g. "forward", "backward", "step"; from one thread
  void stop();                  ///< no more samples; a second call does nothing
  const std::vector<Sample>& samples() const { return samples_; }  ///< after stop()
  const std::vector<Mark>& marks() const { return marks_; }

 private:
  class Recorder;
  std::unique_ptr<Recorder> recorder_;  // null after stop()
  std::vector<Sample> samples_;
  std::vector<Mark> marks_;
};

}  // namespace palimpsest::memory
