#include "palimpsest/memory/device_memory.h"

#include "palimpsest/memory/allocator/device_allocator.h"
#include "palimpsest/memory/counting_allocator.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace palimpsest::memory {

int64_t attainable_bytes(c10::Device device) {
  c10::DeviceAllocator& allocator = device_allocator("attainable_bytes", device);
  allocator.emptyCache();
  return allocated_bytes("attainable_bytes", device).current +
         static_cast<int64_t>(allocator.getMemoryInfo(device.index()).first);
}

void release_cached(c10::Device device) {
  if (device.is_cpu()) {
    if (counting_allocator_installed()) release_retained();
    return;
  }
  device_allocator("release_cached", device).emptyCache();
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

}  // namespace palimpsest::memory
