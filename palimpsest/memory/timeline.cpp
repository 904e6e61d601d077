#include "palimpsest/memory/timeline.h"

#include "palimpsest/memory/live_allocator.h"

#include <chrono>
#include <stdexcept>
#include <utility>

namespace palimpsest::memory {

/// Writes the samples; the vector's own memory comes from operator new, which nobody counts.
class Timeline::Recorder final : public LiveBytes::Observer {
 public:
  Recorder() {
    samples_.reserve(1 << 14);
  }  // a ResNet-50 step is some 3000 events: no growth while it is timed

  void changed(int64_t current) override { samples_.push_back({seconds(), current}); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  std::vector<Sample> take() { return std::move(samples_); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  std::vector<Sample> samples_;
};

Timeline::Timeline() {
  require_counting_allocator("Timeline");
  recorder_ = std::make_unique<Recorder>();
  if (!live_allocator().live().observe(recorder_.get()))
    throw std::logic_error("[memory] one Timeline at a time: stop or destroy the other one first");
}

Timeline::~Timeline() {
  stop();
}

void Timeline::mark(std::string name) {
  if (!recorder_) throw std::logic_error("[memory] Timeline::mark(\"" + name + "\") after stop()");
  marks_.push_back({recorder_->seconds(), std::move(name)});
}

void Timeline::stop() {
  if (!recorder_) return;
  LiveBytes& live = live_allocator().live();
  live.observe(nullptr);
  recorder_->changed(live.current());
  samples_ = recorder_->take();
  recorder_.reset();
}

}  // namespace palimpsest::memory
