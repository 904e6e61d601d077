#pragma once

#include "palimpsest/memory/block_pool.h"
#include "palimpsest/memory/live_bytes.h"

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>

namespace palimpsest::memory {

/// The allocator behind counting_allocator.h: a BlockPool whose live bytes are counted.
/// A block's data pointer is its context, too: c10's raw_allocate demands that, and the size then has to
/// stand in front of the data.
class LiveAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t count) const override;

  LiveBytes& live() { return live_; }
  BlockPool& pool() { return pool_; }
  int64_t allocations() const { return allocations_.load(std::memory_order_relaxed); }

 private:
  static void deallocate(void* data);

  LiveBytes live_;
  BlockPool pool_;
  std::atomic<int64_t> allocations_{0};
};

/// The one instance; never destroyed, because tensors in static storage are freed after everything else.
LiveAllocator& live_allocator();

/// Throws std::logic_error saying how to install the allocator unless it is; `what` needs it.
void require_counting_allocator(const char* what);

}  // namespace palimpsest::memory
