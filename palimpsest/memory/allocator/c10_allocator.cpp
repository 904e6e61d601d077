#include "palimpsest/memory/allocator/c10_allocator.h"

#include "palimpsest/memory/counting_allocator.h"

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <stdexcept>
#include <string>

namespace palimpsest::memory {
namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

[[noreturn]] void throw_out_of_memory(std::size_t bytes, int64_t live, int64_t limit) {
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), live, live, kCpu);
  const std::string state =
      "an allocation of " + std::to_string(bytes) + " bytes with " + std::to_string(live) + " bytes live";
  const std::string way_out = "; lower the batch size or the crop, or use a strategy that keeps less";
  if (limit > 0)
    TORCH_CHECK_WITH(OutOfMemoryError, false, "[memory] ", state, " would exceed the limit of ", limit,
                     " bytes", way_out, ", or raise the limit");
  TORCH_CHECK_WITH(OutOfMemoryError, false, "[memory] the system has no room for ", state, way_out);
}

}  // namespace

thread_local bool is_background_thread = false;

CountingAllocator& counting_allocator() {
  static auto* instance = new CountingAllocator;
  return *instance;
}

void require_counting_allocator(const char* user) {
  if (!counting_allocator_installed())
    throw std::logic_error(
        std::string("[memory] ") + user +
        " needs the counting allocator: call palimpsest::memory::install_counting_allocator() "
        "first in main");
}

c10::DataPtr CountingAllocator::allocate(std::size_t bytes) {
  allocations_.fetch_add(1, std::memory_order_relaxed);
  if (bytes == 0) return {nullptr, nullptr, &deallocate, kCpu};
  const auto asked = static_cast<int64_t>(bytes);
  // A negative tensor size arrives here as a huge unsigned one.
  if (asked < 0 || asked > (int64_t{1} << 56)) throw_out_of_memory(bytes, live_.current(), 0);
  if (!live_.add(asked)) {
    const int64_t live = live_.current(), limit = live_.limit();
    pool_.release();
    throw_out_of_memory(bytes, live, limit);
  }
  BlockPool::Header* block = pool_.take(asked);
  if (!block) {
    live_.remove(asked);
    throw_out_of_memory(bytes, live_.current(), 0);
  }
  block->asked_bytes = asked;
  block->background = is_background_thread;
  if (!block->background) foreground_bytes_.fetch_add(asked, std::memory_order_relaxed);
  void* data = block + 1;
  if (c10::memoryProfilingEnabled())
    c10::reportMemoryUsageToProfiler(data, asked, live_.current(), live_.current(), kCpu);
  return {data, data, &deallocate, kCpu};
}

void CountingAllocator::deallocate(void* data) {
  if (!data) return;
  auto* block = static_cast<BlockPool::Header*>(data) - 1;
  CountingAllocator& self = counting_allocator();
  const int64_t asked = block->asked_bytes;
  if (!block->background) self.foreground_bytes_.fetch_sub(asked, std::memory_order_relaxed);
  // The tensor is dead, so its bytes no longer count. The other order would count the block twice if another
  // thread took it from the pool at once, and refuse that request near the limit.
  self.live_.remove(asked);
  self.pool_.give(block);
  if (c10::memoryProfilingEnabled())
    c10::reportMemoryUsageToProfiler(data, -asked, self.live_.current(), self.live_.current(), kCpu);
}

c10::DeleterFnPtr CountingAllocator::raw_deleter() const {
  return &deallocate;
}

void CountingAllocator::copy_data(void* to, const void* from, std::size_t count) const {
  default_copy_data(to, from, count);
}

}  // namespace palimpsest::memory
