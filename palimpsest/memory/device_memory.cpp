#include "palimpsest/memory/device_memory.h"

#include "palimpsest/memory/allocator/device_allocator.h"
#include "palimpsest/memory/counting_allocator.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace palimpsest::memory {

int64_t attainable_bytes(c10::Device device) {
  c10::DeviceAllocator& allocator = device_allocator("attainable_bytes", device);
  allocator.emptyCache();
  return allocated_bytes("attainable_bytes", device).current +
         static_cast<int64_t>(allocator.getMemoryInfo(device.index()).first);
}

int64_t machine_bytes() {
  int64_t least = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  // The limits of the two versions of control groups; without one, a file is absent, or holds no or a huge number.
  for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    int64_t limit = 0;
    if (std::ifstream(file) >> limit && limit > 0) least = std::min(least, limit);
  }
  return least;
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
