#pragma once

#include <cstdint>

namespace palimpsest::testing {

/// The conversions of kernels/cpu/simd/storage.h in one form of its calls, as one instruction set compiles them, over arrays
/// in the order of memory. `count` is a multiple of 64.
struct StorageFunctions {
  const char* name;  ///< "bf16, one value", "bf16, halves", ...
  bool is_f16;
  bool is_step;  ///< converts two vectors at a time
  void (*widen)(int64_t count, const uint16_t* from, float* to);
  void (*narrow)(int64_t count, const float* from, uint16_t* to);
  void (*as_stored)(int64_t count, const float* from, float* to);
};

/// Every form of both 16-bit types: one value, one vector, a step in halves, and a bf16 step in alternate order.
struct StorageForms {
  StorageFunctions forms[7];
};

}  // namespace palimpsest::testing
