#pragma once

#include "palimpsest/kernels/cuda/stream.h"
#include "palimpsest/kernels/exponent_histogram.h"

/// kernels/exponent_histogram.h on NVIDIA GPUs. Without a CUDA compiler (no_cuda/) the function throws
/// std::invalid_argument, which says so.
namespace palimpsest::kernels::cuda {

/// Adds the `n` values at `x` to `counts`, kExponentBins numbers; both in memory of the current device, `x`
/// with no alignment beyond its type's. f32, f16 or bf16; f64 throws std::invalid_argument. One launch on
/// `stream` (none for n = 0), which is not waited for; nothing is allocated. Sums of integers: the same
/// counts whatever the order of threads.
void exponent_histogram(DType dtype, const void* x, int64_t n, int64_t* counts, Stream stream);

}  // namespace palimpsest::kernels::cuda
