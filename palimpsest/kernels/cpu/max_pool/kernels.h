#pragma once

#include "palimpsest/kernels/max_pool.h"

#include <cstdint>

/// What cpu/max_pool.cpp asks of an instruction set: single-threaded sweeps over some planes or rows. Each
/// set compiles the same source (max_pool_kernels.cpp) into a namespace of its own and hands out one table.
namespace palimpsest::kernels::cpu {

/// One window that holds a given input row (or column).
struct PoolTap {
  int32_t out;       ///< the output row (column)
  int32_t position;  ///< ky (kx): where in that window the input row (column) lies
};

/// For every input row (column) i the windows that hold it, taps[first[i]] to taps[first[i + 1]], outputs
/// ascending.
struct PoolTaps {
  const int32_t* first;
  const PoolTap* taps;
};

/// The sweeps of one storage type; x, z, dz and dx are of it. Planes: H * W contiguous values (NCHW). Rows: W
/// * C contiguous values (channels last), numbered through all images.
struct MaxPoolSweeps {
  /// Bytes of `scratch` that the plane sweeps need, which may lie at any address that suits an int64_t.
  int64_t (*forward_scratch)(const MaxPoolProblem& layer);
  int64_t (*backward_scratch)(const MaxPoolProblem& layer);
  /// `planes` planes from the start of x, z and argmax (which may be null).
  void (*forward_planes)(const MaxPoolProblem& layer, int64_t planes, const void* x, void* z, uint8_t* argmax,
                         void* scratch);
  void (*backward_planes)(const MaxPoolProblem& layer, int64_t planes, const void* dz, const uint8_t* argmax,
                          void* dx, void* scratch);
  /// Output rows [begin, end).
  void (*forward_rows)(const MaxPoolProblem& layer, int64_t begin, int64_t end, const void* x, void* z,
                       uint8_t* argmax);
  /// Input rows [begin, end): each gathers from the windows that hold it.
  void (*backward_rows)(const MaxPoolProblem& layer, int64_t begin, int64_t end, PoolTaps rows,
                        PoolTaps columns, const void* dz, const uint8_t* argmax, void* dx);
};

struct MaxPoolKernels {
  MaxPoolSweeps f32, f64, f16, bf16;
};

}  // namespace palimpsest::kernels::cpu
