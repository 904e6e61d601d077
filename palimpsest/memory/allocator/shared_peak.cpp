#include "palimpsest/memory/allocator/shared_peak.h"

#include "palimpsest/memory/allocator/c10_allocator.h"
#include "palimpsest/memory/allocator/device_allocator.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace palimpsest::memory {

/// The peak of a device before its last restart.
struct SharedPeak::Record {
  c10::Device device;
  int64_t before = 0;
};

namespace {

struct Registry {
  std::mutex mutex;  // guards every record
  std::vector<std::weak_ptr<SharedPeak::Record>> records;
};

Registry& registry() {
  static auto& all = *new Registry;
  return all;
}

/// "cpu" and "cpu:0" have one peak.
c10::Device without_index_on_cpu(c10::Device device) {
  return device.is_cpu() ? c10::Device(c10::kCPU) : device;
}

int64_t peak_of(const char* user, c10::Device device) {
  return device.is_cpu() ? counting_allocator().live().peak() : allocated_bytes(user, device).peak;
}

/// Restarts the device's peak and returns the peak until now.
int64_t restart(const char* user, c10::Device device) {
  if (device.is_cpu()) return counting_allocator().live().reset_peak();
  const int64_t before = peak_of(user, device);
  device_allocator(user, device).resetPeakStats(device.index());
  return before;
}

void restart_locked(const char* user, c10::Device device) {
  const int64_t before = restart(user, device);
  std::erase_if(registry().records, [](const auto& record) { return record.expired(); });
  for (const auto& weak : registry().records)
    if (const auto record = weak.lock(); record && record->device == device)
      record->before = std::max(record->before, before);
}

}  // namespace

std::mutex& shared_peak_mutex() {
  return registry().mutex;
}

SharedPeak::SharedPeak(const char* user, c10::Device device)
    : record_(std::make_shared<Record>(Record{without_index_on_cpu(device)})) {
  const std::lock_guard lock(registry().mutex);
  restart_locked(user, record_->device);
  registry().records.push_back(record_);
}

int64_t SharedPeak::bytes() const {
  const std::lock_guard lock(registry().mutex);
  return std::max(record_->before, peak_of("Meter", record_->device));
}

void restart_peak(const char* user, c10::Device device) {
  const std::lock_guard lock(registry().mutex);
  restart_locked(user, without_index_on_cpu(device));
}

}  // namespace palimpsest::memory
