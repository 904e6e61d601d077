#include "palimpsest/kernels/cuda/max_pool.h"

#include "palimpsest/kernels/no_cuda/refuse.h"

// kernels/cuda/max_pool.h for a build without CUDA.
namespace palimpsest::kernels::cuda {

void max_pool_forward(const MaxPoolProblem&, const void*, void*, uint8_t*, Stream) {
  refuse("max_pool_forward");
}
void max_pool_backward(const MaxPoolProblem&, const void*, const uint8_t*, void*, Stream) {
  refuse("max_pool_backward");
}

}  // namespace palimpsest::kernels::cuda
