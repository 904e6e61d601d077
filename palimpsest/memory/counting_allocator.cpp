#include "palimpsest/memory/counting_allocator.h"

#include "palimpsest/memory/live_allocator.h"

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <stdexcept>
#include <string>

namespace palimpsest::memory {
namespace {

std::atomic<bool> installed{false};

const c10::Device kCpu(c10::DeviceType::CPU);

[[noreturn]] void fail(size_t bytes, int64_t live, int64_t limit) {
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), live, live, kCpu);
  const std::string state =
      "an allocation of " + std::to_string(bytes) + " bytes with " + std::to_string(live) + " bytes live ";
  const std::string way_out = "; lower the batch size or the crop, or use a strategy that keeps less";
  if (limit > 0)
    TORCH_CHECK_WITH(OutOfMemoryError, false, "[memory] ", state, "would exceed the limit of ", limit,
                     " bytes", way_out, ", or raise the limit");
  TORCH_CHECK_WITH(OutOfMemoryError, false, "[memory] the system has no room for ", state, way_out);
}

}  // namespace

LiveAllocator& live_allocator() {
  static auto* instance = new LiveAllocator;
  return *instance;
}

void require_counting_allocator(const char* what) {
  if (!counting_allocator_installed())
    throw std::logic_error(
        std::string("[memory] ") + what +
        " needs the counting allocator: call palimpsest::memory::install_counting_allocator() "
        "first in main");
}

c10::DataPtr LiveAllocator::allocate(size_t bytes) {
  allocations_.fetch_add(1, std::memory_order_relaxed);
  if (bytes == 0) return {nullptr, nullptr, &deallocate, kCpu};
  const auto asked = static_cast<int64_t>(bytes);
  // A negative tensor size arrives here as a huge unsigned one.
  if (asked < 0 || asked > (int64_t{1} << 56)) fail(bytes, live_.current(), 0);
  if (!live_.add(asked)) {
    const int64_t live = live_.current(), limit = live_.limit();
    pool_.release();
    fail(bytes, live, limit);
  }
  BlockPool::Header* block = pool_.take(asked);
  if (!block) {
    live_.remove(asked);
    fail(bytes, live_.current(), 0);
  }
  block->asked_bytes = asked;
  void* data = block + 1;
  if (c10::memoryProfilingEnabled())
    c10::reportMemoryUsageToProfiler(data, asked, live_.current(), live_.current(), kCpu);
  return {data, data, &deallocate, kCpu};
}

void LiveAllocator::deallocate(void* data) {
  if (!data) return;
  auto* block = static_cast<BlockPool::Header*>(data) - 1;
  LiveAllocator& self = live_allocator();
  const int64_t asked = block->asked_bytes;
  // Into the pool first, so that the count never says less than what is in use.
  self.pool_.give(block);
  self.live_.remove(asked);
  if (c10::memoryProfilingEnabled())
    c10::reportMemoryUsageToProfiler(data, -asked, self.live_.current(), self.live_.current(), kCpu);
}

c10::DeleterFnPtr LiveAllocator::raw_deleter() const {
  return &deallocate;
}

void LiveAllocator::copy_data(void* to, const void* from, std::size_t count) const {
  default_copy_data(to, from, count);
}

void install_counting_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::SetAllocator(c10::DeviceType::CPU, &live_allocator(), /*priority=*/1);
    installed = true;
  });
}

bool counting_allocator_installed() {
  return installed;
}

MemoryStats memory_stats() {
  if (!counting_allocator_installed()) return {};
  LiveAllocator& allocator = live_allocator();
  return {.current_bytes = allocator.live().current(),
          .peak_bytes = allocator.live().peak(),
          .retained_bytes = allocator.pool().retained_bytes(),
          .allocations = allocator.allocations()};
}

void reset_peak() {
  require_counting_allocator("reset_peak");
  live_allocator().live().reset_peak();
}

void release_retained() {
  if (counting_allocator_installed()) live_allocator().pool().release();
}

void set_memory_limit(int64_t bytes) {
  require_counting_allocator("set_memory_limit");
  if (bytes < 0)
    throw std::invalid_argument("[memory] the limit must be 0 (none) or a number of bytes, got " +
                                std::to_string(bytes));
  live_allocator().live().set_limit(bytes);
}

}  // namespace palimpsest::memory
