#include "palimpsest/kernels/cuda/stream.h"

#include "palimpsest/kernels/no_cuda/refuse.h"

// kernels/cuda/stream.h for a build without CUDA.
namespace palimpsest::kernels::cuda {

bool is_built() {
  return false;
}

void* mapped_host_memory(std::size_t) {
  refuse("mapped_host_memory");
}

bool is_capturing(Stream) {
  refuse("is_capturing");
}

}  // namespace palimpsest::kernels::cuda
