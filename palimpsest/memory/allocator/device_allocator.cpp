#include "palimpsest/memory/allocator/device_allocator.h"

#include <stdexcept>

namespace palimpsest::memory {

c10::DeviceAllocator& device_allocator(const std::string& user, c10::Device device) {
  if (!device.has_index())
    throw std::logic_error("[memory] " + user +
                           " needs to know which device, as in c10::Device(\"cuda:0\"), got " + device.str());
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator || !allocator->initialized())
    throw std::logic_error("[memory] " + user + " needs a caching allocator that has memory of " +
                           device.str() + ": link libtorch's library for it, and move a tensor there first");
  return *allocator;
}

c10::CachingAllocator::Stat allocated_bytes(const std::string& user, c10::Device device) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return device_allocator(user, device).getDeviceStats(device.index()).allocated_bytes[kAll];
}

}  // namespace palimpsest::memory
