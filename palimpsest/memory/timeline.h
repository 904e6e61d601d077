#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::memory {

/// Records live bytes over time while it is alive, over all threads: one sample an allocation or free.
/// At most one Timeline at a time. Data only: io/svg draws it.
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

  void mark(std::string name);  ///< e.g. "forward", "backward", "step"
  void stop();                  ///< no more samples
  const std::vector<Sample>& samples() const { return samples_; }  ///< after stop()
  const std::vector<Mark>& marks() const { return marks_; }

 private:
  std::vector<Sample> samples_;
  std::vector<Mark> marks_;
};

}  // namespace palimpsest::memory
