#pragma once

#include "palimpsest/kernels/max_pool.h"

#include <cstdint>

/// The functions that an instruction set provides for max_pool.cpp: single-threaded sweeps over some planes
/// or rows. Each set compiles kernels.cpp into its own namespace and provides one table.
namespace palimpsest::kernels::cpu::max_pool {

/// One window that holds a given input row (or column).
struct Tap {
  int32_t out;       ///< the output row (column)
  int32_t position;  ///< ky (kx): the position of the input row (column) in the window
};

/// The windows that hold input row (column) i are taps[first[i]] to taps[first[i + 1] - 1], outputs
/// ascending.
struct Taps {
  const int32_t* first;
  const Tap* taps;
};

/// The sweeps of one storage type, that of x, z, dz and dx. Planes are H * W contiguous values (NCHW). Rows
/// are W * C contiguous values (channels-last), numbered through all images.
struct Sweeps {
  /// Bytes of `scratch` that the plane sweeps need, aligned for int64_t.
  int64_t (*forward_scratch)(const MaxPoolProblem& problem);
  int64_t (*backward_scratch)(const MaxPoolProblem& problem);
  /// Forward over `planes` planes from the start of x, z and argmax (which may be null).
  void (*forward_planes)(const MaxPoolProblem& problem, int64_t planes, const void* x, void* z,
                         uint8_t* argmax, void* scratch);
  void (*backward_planes)(const MaxPoolProblem& problem, int64_t planes, const void* dz,
                          const uint8_t* argmax, void* dx, void* scratch);
  /// Forward over output rows [begin, end).
  void (*forward_rows)(const MaxPoolProblem& problem, int64_t begin, int64_t end, const void* x, void* z,
                       uint8_t* argmax);
  /// Backward over input rows [begin, end): each row gathers from the windows that hold it.
  void (*backward_rows)(const MaxPoolProblem& problem, int64_t begin, int64_t end, Taps rows, Taps columns,
                        const void* dz, const uint8_t* argmax, void* dx);
};

struct Kernels {
  Sweeps f32, f64, f16, bf16;
};

}  // namespace palimpsest::kernels::cpu::max_pool
