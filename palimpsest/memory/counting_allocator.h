#pragma once

#include <cstdint>

namespace palimpsest::memory {

/// The state of the counting allocator, over all threads; all members are 0 unless it is installed. Sizes are
/// the requested sizes, as libtorch's tensors see them.
struct MemoryStats {
  int64_t current_bytes = 0;  ///< in live blocks
  int64_t peak_bytes = 0;     ///< highest current_bytes since the last reset_peak(), exact over all threads
  int64_t background_bytes = 0;  ///< the part of current_bytes that background threads allocated
  int64_t retained_bytes = 0;    ///< in freed blocks kept for reuse, rounded up; not part of current_bytes
  int64_t allocations = 0;       ///< since the program started
};

/// Replaces libtorch's CPU allocator by one that counts bytes and keeps freed blocks for reuse. (glibc gives
/// a large block back to the system at every free; the page faults made a ResNet-50 step take 1.53 s instead
/// of 1.18 s.) Live and retained blocks together stay below 1.25 times the highest live bytes + 64 MiB. Data
/// is aligned to 64 bytes. A request of 0 bytes gives a null pointer and counts 0 bytes. Thread-safe.
/// Call it first in main, before any tensor exists: older tensors are not counted, and the allocator that
/// made them frees them. A second call does nothing.
void install_counting_allocator();
bool counting_allocator_installed();

MemoryStats memory_stats();
/// Marks this thread, until it ends, as one that works beside the training steps, as the loader's threads do. The blocks that
/// it allocates count as background_bytes, too, until a thread frees them; Meter::kept_bytes() leaves them out.
void mark_background_thread();
/// Starts a new peak from the current live bytes.
void reset_peak();
/// Gives retained blocks back to the system.
void release_retained();
/// Limits current_bytes to `bytes`; 0 is no limit. An allocation beyond the limit gives the retained blocks
/// back and throws c10::OutOfMemoryError, which names its size and the limit. It is not counted, and the
/// program can continue. A limit below current_bytes is allowed: live blocks stay.
/// Throws std::logic_error unless the allocator is installed, std::invalid_argument for a negative limit.
void set_memory_limit(int64_t bytes);

}  // namespace palimpsest::memory
