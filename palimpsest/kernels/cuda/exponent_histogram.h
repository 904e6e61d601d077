#pragma once

#include "palimpsest/kernels/cuda/stream.h"
#include "palimpsest/kernels/exponent_histogram.h"

#include <cstdint>

/// kernels/exponent_histogram.h on NVIDIA GPUs.
namespace palimpsest::kernels::cuda {

/// Adds the `n` values at `x` to the kExponentBins numbers at `counts`, both in memory of the current device.
/// x: f32, f16 or bf16, no alignment required. Makes one launch on `stream` (none for n = 0), does not wait
/// for it, and allocates nothing. The counts do not depend on the order of threads.
/// Errors: std::invalid_argument for f64, and always in a build without CUDA (no_cuda/); std::runtime_error
/// if the launch fails.
void exponent_histogram(DType dtype, const void* x, int64_t n, int64_t* counts, Stream stream);

}  // namespace palimpsest::kernels::cuda
