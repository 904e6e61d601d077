#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace palimpsest::memory {

/// libtorch's caching allocator of a device other than the CPU. std::logic_error, saying that `what` needs
/// it, where the device has no index, or there is no such allocator, or it has no memory of the device yet.
c10::DeviceAllocator& caching_allocator(const std::string& what, c10::Device device);

/// Bytes that tensors there have, not those that it has put by: now and at most.
c10::CachingAllocator::Stat allocated_bytes(const std::string& what, c10::Device device);

}  // namespace palimpsest::memory
