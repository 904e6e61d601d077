#pragma once

#include "palimpsest/memory/allocator/block_pool.h"
#include "palimpsest/memory/allocator/byte_counter.h"

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace palimpsest::memory {

/// The c10::Allocator behind memory/counting_allocator.h: takes blocks from a BlockPool and counts live
/// bytes. c10's raw_allocate demands that a block's data pointer is its context too, so the block's size
/// stands in front of the data.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t count) const override;

  ByteCounter& live() { return live_; }
  BlockPool& pool() { return pool_; }
  /// Live bytes without those that background threads allocated. What these threads do meanwhile changes no bit of it.
  int64_t foreground_bytes() const { return foreground_bytes_.load(std::memory_order_relaxed); }
  int64_t allocations() const { return allocations_.load(std::memory_order_relaxed); }

 private:
  static void deallocate(void* data);

  ByteCounter live_;
  BlockPool pool_;
  std::atomic<int64_t> allocations_{0}, foreground_bytes_{0};
};

/// Whether this thread's allocations are background (memory/counting_allocator.h).
extern thread_local bool is_background_thread;

/// Returns the only instance. It is never destroyed, because tensors in static storage are freed last.
CountingAllocator& counting_allocator();

/// Throws std::logic_error unless the allocator is installed; the message names `user`, which needs it, and
/// says how to install it.
void require_counting_allocator(const char* user);

}  // namespace palimpsest::memory
