#include "palimpsest/memory/meter.h"

#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/live_allocator.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <stdexcept>

namespace palimpsest::memory {
namespace {

c10::DeviceAllocator& caching_allocator(c10::Device device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator || !allocator->initialized())
    throw std::logic_error("[memory] Meter needs a caching allocator that has memory of " + device.str() +
                           ": link libtorch's library for it, and move a tensor there first");
  return *allocator;
}

c10::CachingAllocator::Stat bytes_on(c10::Device device) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return caching_allocator(device).getDeviceStats(device.index()).allocated_bytes[kAll];
}

int64_t current_bytes(c10::Device device) {
  return device.is_cpu() ? memory_stats().current_bytes : bytes_on(device).current;
}

}  // namespace

Meter::Meter(c10::Device device) : device_(device) {
  if (device.is_cpu())
    require_counting_allocator("Meter");
  else if (!device.has_index())
    throw std::logic_error("[memory] Meter needs to know which device, as in c10::Device(\"cuda:0\"), got " +
                           device.str());
  base_ = current_bytes(device);
  device.is_cpu() ? reset_peak() : caching_allocator(device).resetPeakStats(device.index());
}

void Meter::forward_done() {
  kept_ = current_bytes(device_) - base_;
}

int64_t Meter::kept_bytes() const {
  return kept_;
}
int64_t Meter::peak_bytes() const {
  return device_.is_cpu() ? memory_stats().peak_bytes : bytes_on(device_).peak;
}
int64_t Meter::base_bytes() const {
  return base_;
}

}  // namespace palimpsest::memory
