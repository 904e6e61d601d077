#pragma once

#include <cstdint>

namespace palimpsest::memory {

/// What the counting allocator knows, over all threads. Sizes are those asked for, as libtorch's tensors see
/// them. Without the allocator installed all are 0.
struct MemoryStats {
  int64_t current_bytes = 0;   ///< in live blocks
  int64_t peak_bytes = 0;      ///< highest current_bytes since the last reset_peak(), exact over all threads
  int64_t retained_bytes = 0;  ///< freed blocks kept for reuse, rounding included: not counted above
  int64_t allocations = 0;     ///< calls since the program started
};

/// Makes libtorch's CPU allocator count, and retain freed blocks (glibc gives large blocks back at every
/// free, and the page faults cost a ResNet-50 step 1.53 s instead of 1.18 s). Call it first in main, before
/// any tensor: tensors that are older are not counted (and are freed as they were allocated). Live and
/// retained blocks together stay below 1.25 times the highest live bytes + 64 MiB (memory/block_pool.h). Data
/// is aligned to 64 bytes. A request of 0 bytes gives a null pointer and counts 0. Thread-safe. A second call
/// does nothing.
void install_counting_allocator();
bool counting_allocator_installed();

MemoryStats memory_stats();
/// Starts a new peak from the bytes now live.
void reset_peak();
/// Gives retained blocks back to the system.
void release_retained();
/// An allocation that would bring current_bytes above `bytes` throws c10::OutOfMemoryError naming both, after
/// the retained blocks were given back; nothing is counted for it, and the program can go on. 0: no limit. A
/// limit below current_bytes is allowed: what is live stays. Throws std::logic_error where the allocator is
/// not installed, std::invalid_argument for a negative limit.
void set_memory_limit(int64_t bytes);

}  // namespace palimpsest::memory
