#include "palimpsest/memory/meter.h"

#include "palimpsest/memory/allocator/c10_allocator.h"
#include "palimpsest/memory/allocator/device_allocator.h"
#include "palimpsest/memory/allocator/shared_peak.h"
#include "palimpsest/memory/counting_allocator.h"

namespace palimpsest::memory {
namespace {

int64_t live_bytes(c10::Device device) {
  return device.is_cpu() ? memory_stats().current_bytes : allocated_bytes("Meter", device).current;
}

// Background threads allocate on the CPU.
int64_t foreground_bytes(c10::Device device) {
  return device.is_cpu() ? counting_allocator().foreground_bytes() : live_bytes(device);
}

c10::Device checked(c10::Device device) {
  if (device.is_cpu()) require_counting_allocator("Meter");
  return device;
}

}  // namespace

Meter::Meter(c10::Device device)
    : device_(checked(device)),
      peak_(std::make_shared<const SharedPeak>("Meter", device)),
      base_(live_bytes(device)),
      foreground_(foreground_bytes(device)) {}

void Meter::forward_done() {
  kept_ = foreground_bytes(device_) - foreground_;
}

int64_t Meter::kept_bytes() const {
  return kept_;
}
int64_t Meter::peak_bytes() const {
  return peak_->bytes();
}
int64_t Meter::base_bytes() const {
  return base_;
}
int64_t Meter::current_bytes() const {
  return live_bytes(device_);
}

}  // namespace palimpsest::memory
