#include "palimpsest/kernels/cuda/stream.h"

#include "palimpsest/kernels/cuda/device/platform.cuh"

namespace palimpsest::kernels::cuda {

bool is_built() {
  return true;
}

bool is_capturing(Stream stream) {
  return capture_is_on(stream);
}

}  // namespace palimpsest::kernels::cuda
