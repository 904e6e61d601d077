#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <string>

namespace palimpsest::memory {

/// Returns libtorch's caching allocator for `device`, which is not the CPU. Throws std::logic_error, naming
/// `user`, which needs it, if `device` has no index, if the device has no such allocator, or if the allocator
/// has not taken any memory of the device yet.
c10::DeviceAllocator& device_allocator(const std::string& user, c10::Device device);

/// Returns the bytes of live tensors on `device`, current and peak. Memory that the allocator caches does not
/// count. Throws as device_allocator() does.
c10::CachingAllocator::Stat allocated_bytes(const std::string& user, c10::Device device);

}  // namespace palimpsest::memory
