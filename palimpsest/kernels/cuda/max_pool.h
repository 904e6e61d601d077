#pragma once

#include "palimpsest/kernels/cuda/stream.h"
#include "palimpsest/kernels/max_pool.h"

#include <cstdint>

/// kernels/max_pool.h on NVIDIA GPUs: the functions of cpu over memory of the current device, with the same
/// bytes. Each function is one launch on `stream`, returns as soon as it is queued, and needs no memory. In
/// backward an input pixel adds up the gradients of the windows around it in row order, so that the order of
/// threads has no effect. Errors: std::invalid_argument for a height, width or (in channels-last) number of
/// channels above 2^31 - 1; std::runtime_error if the launch fails. A build without CUDA (no_cuda/) always
/// throws std::invalid_argument.
namespace palimpsest::kernels::cuda {

void max_pool_forward(const MaxPoolProblem& problem, const void* x, void* z, uint8_t* argmax, Stream stream);
void max_pool_backward(const MaxPoolProblem& problem, const void* dz, const uint8_t* argmax, void* dx,
                       Stream stream);

}  // namespace palimpsest::kernels::cuda
