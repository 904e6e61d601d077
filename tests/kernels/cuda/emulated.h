#pragma once

#include "tests/support/cuda_emulator/emulator.h"

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

}  // namespace palimpsest::testing
