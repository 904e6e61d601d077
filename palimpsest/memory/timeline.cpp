#include "palimpsest/memory/timeline.h"

#include "palimpsest/memory/allocator/c10_allocator.h"
#include "palimpsest/memory/allocator/device_allocator.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

namespace palimpsest::memory {
namespace {

/// Collects the samples. The vector's own memory comes from operator new, which is not counted.
class Samples {
 public:
  // A ResNet-50 step has some 3000 events: the vector does not grow during one.
  Samples() { samples_.reserve(1 << 14); }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void add(int64_t current) { samples_.push_back({seconds(), current}); }
  std::vector<Timeline::Sample> take() { return std::move(samples_); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  std::vector<Timeline::Sample> samples_;
};

/// Receives libtorch's reports to a profiler about one device's memory. It may outlive its Timeline: a graph
/// that was begun while it lived takes it to the threads of the backward pass.
class DeviceReports final : public c10::MemoryReportingInfoBase {
 public:
  explicit DeviceReports(c10::Device device) : device_(device) {}

  void reportMemoryUsage(void*, int64_t, size_t total_allocated, size_t, c10::Device device) override {
    if (device == device_) add(static_cast<int64_t>(total_allocated));
  }
  bool memoryProfilingEnabled() const override {
    const std::scoped_lock lock(mutex_);
    return !stopped_;
  }

  void add(int64_t current) {
    const std::scoped_lock lock(mutex_);
    if (!stopped_) samples_.add(current);
  }
  double seconds() const { return samples_.seconds(); }
  std::vector<Timeline::Sample> stop() {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    return samples_.take();
  }

 private:
  const c10::Device device_;
  mutable std::mutex mutex_;
  Samples samples_;
  bool stopped_ = false;
};

}  // namespace

class Timeline::Recorder {
 public:
  virtual ~Recorder() = default;
  virtual double seconds() const = 0;
  virtual std::vector<Sample> stop() = 0;  ///< the last sample is taken now
};

class Timeline::HostRecorder final : public Recorder, ByteCounter::Observer {
 public:
  HostRecorder() {
    require_counting_allocator("Timeline");
    if (!counting_allocator().live().observe(this))
      throw std::logic_error("[memory] one Timeline at a time: stop or destroy the other one first");
  }
  ~HostRecorder() override { end(); }

  double seconds() const override { return samples_.seconds(); }
  std::vector<Sample> stop() override {
    end();
    samples_.add(counting_allocator().live().current());
    return samples_.take();
  }

 private:
  void changed(int64_t current) override { samples_.add(current); }
  void end() {
    if (!std::exchange(ended_, true)) counting_allocator().live().observe(nullptr);
  }

  Samples samples_;
  bool ended_ = false;
};

class Timeline::DeviceRecorder final : public Recorder {
 public:
  explicit DeviceRecorder(c10::Device device) : device_(device) {
    const int64_t current = now();
    if (c10::memoryProfilingEnabled())
      throw std::logic_error(
          "[memory] a profiler or another Timeline records memory on this thread: stop it first");
    reports_->add(current);
    receives_.emplace(c10::DebugInfoKind::PROFILER_STATE, reports_);
  }
  ~DeviceRecorder() override { reports_->stop(); }

  double seconds() const override { return reports_->seconds(); }
  std::vector<Sample> stop() override {
    receives_.reset();
    reports_->add(now());
    return reports_->stop();
  }

 private:
  int64_t now() const { return allocated_bytes("Timeline", device_).current; }

  const c10::Device device_;
  std::shared_ptr<DeviceReports> reports_ = std::make_shared<DeviceReports>(device_);
  std::optional<c10::DebugInfoGuard> receives_;
};

Timeline::Timeline(c10::Device device) {
  if (device.is_cpu())
    recorder_ = std::make_unique<HostRecorder>();
  else
    recorder_ = std::make_unique<DeviceRecorder>(device);
}

Timeline::~Timeline() = default;

void Timeline::mark(std::string name) {
  if (!recorder_) throw std::logic_error("[memory] Timeline::mark(\"" + name + "\") after stop()");
  marks_.push_back({recorder_->seconds(), std::move(name)});
}

void Timeline::stop() {
  if (!recorder_) return;
  samples_ = recorder_->stop();
  recorder_.reset();
}

}  // namespace palimpsest::memory
