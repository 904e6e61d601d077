#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// A device of libtorch beside the CPU ("emulated:0"), without a GPU. It has memory, streams, events, pinned
/// memory and a caching allocator of its own; the CPU executes its operators at once. So code that mixes
/// tensors of host and device, or reads memory too early, fails as on a GPU, and a test can see every copy,
/// event and wait. A process has it from install() on; it must have no CUDA device.
namespace palimpsest::testing::emulated_device {

void install();

/// What happened on the device, in order: "copy to device 108 bytes of pinned memory on stream 1", "record
/// event 3 on stream 1", "stream 0 waits for event 3", "memory of stream 1 is used on stream 0", "host waits
/// for event 4", "host waits for the device".
std::vector<std::string> take_events();

/// Waits of the host since install(), but for those of OperatorCalls (tests/support/operator_calls.h).
int64_t host_waits();

/// Bytes of pinned memory that live now.
int64_t pinned_bytes();

}  // namespace palimpsest::testing::emulated_device
