#include "palimpsest/kernels/cuda/stream.h"

#include "palimpsest/kernels/cuda/device/platform.cuh"

namespace palimpsest::kernels::cuda {

bool is_built() {
  return true;
}

void* mapped_host_memory(std::size_t bytes) {
  return new_mapped_memory(bytes);
}

bool is_capturing(Stream stream) {
  return capture_is_on(stream);
}

}  // namespace palimpsest::kernels::cuda
