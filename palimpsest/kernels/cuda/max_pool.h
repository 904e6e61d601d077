#pragma once

#include "palimpsest/kernels/cuda/stream.h"
#include "palimpsest/kernels/max_pool.h"

/// kernels/max_pool.h on NVIDIA GPUs: the same functions, and the same bytes, over device memory of the
/// current device. Each is one launch, queued on `stream`, and needs no memory of its own: an input pixel
/// gathers its gradient from the windows that it lies in, in their row order, so nothing depends on the order
/// of threads. Images and outputs of up to 2^31 - 1 rows and columns.
/// Without a CUDA compiler (no_cuda/) each throws std::invalid_argument, which says so.
namespace palimpsest::kernels::cuda {

void max_pool_forward(const MaxPoolProblem& layer, const void* x, void* z, uint8_t* argmax, Stream stream);
void max_pool_backward(const MaxPoolProblem& layer, const void* dz, const uint8_t* argmax, void* dx,
                       Stream stream);

}  // namespace palimpsest::kernels::cuda
