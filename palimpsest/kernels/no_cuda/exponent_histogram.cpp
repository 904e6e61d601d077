#include "palimpsest/kernels/cuda/exponent_histogram.h"

#include "palimpsest/kernels/no_cuda/refuse.h"

// kernels/cuda/exponent_histogram.h where the build has no CUDA compiler.
namespace palimpsest::kernels::cuda {

void exponent_histogram(DType, const void*, int64_t, int64_t*, Stream) {
  refuse("exponent_histogram");
}

}  // namespace palimpsest::kernels::cuda
