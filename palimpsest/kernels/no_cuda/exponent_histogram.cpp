#include "palimpsest/kernels/cuda/exponent_histogram.h"

#include "palimpsest/kernels/no_cuda/refuse.h"

// kernels/cuda/exponent_histogram.h for a build without CUDA.
namespace palimpsest::kernels::cuda {

void exponent_histogram(DType, const void*, int64_t, int64_t*, Stream) {
  refuse("exponent_histogram");
}

}  // namespace palimpsest::kernels::cuda
