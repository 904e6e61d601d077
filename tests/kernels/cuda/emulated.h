#pragma once

#include "tests/support/cuda_emulator/emulator.h"

#include <cstdint>
#include <cstring>
#include <memory>

namespace palimpsest::testing {

using cuda_emulator::Order;

inline constexpr Order kOrders[] = {Order::kForward, Order::kReverse, Order::kRandom};

/// Sets the order of threads and blocks until the end of the scope.
class WithOrder {
 public:
  explicit WithOrder(Order order) { cuda_emulator::settings().order = order; }
  ~WithOrder() { cuda_emulator::settings() = {}; }
  WithOrder(const WithOrder&) = delete;
  WithOrder& operator=(const WithOrder&) = delete;
};

/// Memory that no call has cleared; null for 0 bytes. It has the exact size, so that AddressSanitizer detects
/// an overrun.
inline std::unique_ptr<unsigned char[]> any_content(int64_t bytes) {
  if (bytes == 0) return nullptr;
  std::unique_ptr<unsigned char[]> memory(new unsigned char[static_cast<std::size_t>(bytes)]);
  std::memset(memory.get(), 0xa5, static_cast<std::size_t>(bytes));
  return memory;
}

}  // namespace palimpsest::testing
