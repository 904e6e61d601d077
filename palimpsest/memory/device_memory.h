#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace palimpsest::memory {

/// Returns the highest live bytes (memory/meter.h) that a program may reach on a device other than the CPU:
/// those that live now, and what the device has free when the allocator has given its unused blocks back.
/// Other programs may take some of it. Throws std::logic_error as Meter does.
int64_t attainable_bytes(c10::Device device);

/// Returns the bytes of memory that the machine has, or fewer where the container of the process has a limit of its own.
int64_t machine_bytes();

/// Gives the blocks that an allocator keeps for reuse back: of libtorch's caching allocator to the device, of
/// the counting allocator, if it is installed, to the system. Waits for the device.
void release_cached(c10::Device device);

/// Returns when the work that was given to the device is done; on the CPU at once.
void synchronize(c10::Device device);

}  // namespace palimpsest::memory
