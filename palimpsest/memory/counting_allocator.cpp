#include "palimpsest/memory/counting_allocator.h"

#include "palimpsest/memory/allocator/c10_allocator.h"
#include "palimpsest/memory/allocator/shared_peak.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>

namespace palimpsest::memory {
namespace {

std::atomic<bool> installed{false};

// A fork copies locks as they are: a child of a fork while another thread held one would wait for ever at its
// first tensor. (malloc does the same for its own locks.)
void lock_for_fork() {
  shared_peak_mutex().lock();
  counting_allocator().live().mutex().lock();
  counting_allocator().pool().mutex().lock();
}
void unlock_after_fork() {
  counting_allocator().pool().mutex().unlock();
  counting_allocator().live().mutex().unlock();
  shared_peak_mutex().unlock();
}

}  // namespace

void install_counting_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::SetAllocator(c10::DeviceType::CPU, &counting_allocator(), /*priority=*/1);
    pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork);
    installed = true;
  });
}

bool counting_allocator_installed() {
  return installed;
}

MemoryStats memory_stats() {
  if (!counting_allocator_installed()) return {};
  CountingAllocator& allocator = counting_allocator();
  const int64_t foreground = allocator.foreground_bytes(), current = allocator.live().current();
  return {
      .current_bytes = current,
      .peak_bytes = allocator.live().peak(),
      .background_bytes = std::max<int64_t>(0, current - foreground),  // other threads allocate in between
      .retained_bytes = allocator.pool().retained_bytes(),
      .allocations = allocator.allocations()};
}

void mark_background_thread() {
  is_background_thread = true;
}

void reset_peak() {
  require_counting_allocator("reset_peak");
  restart_peak("reset_peak", c10::DeviceType::CPU);
}

void release_retained() {
  if (counting_allocator_installed()) counting_allocator().pool().release();
}

void set_memory_limit(int64_t bytes) {
  require_counting_allocator("set_memory_limit");
  if (bytes < 0)
    throw std::invalid_argument("[memory] the limit must be 0 (none) or a number of bytes, got " +
                                std::to_string(bytes));
  counting_allocator().live().set_limit(bytes);
}

}  // namespace palimpsest::memory
