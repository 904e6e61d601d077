#include "palimpsest/kernels/cuda/abn/launch.cuh"

namespace palimpsest::kernels::cuda {

template <>
const AbnKernels<Float16>& abn_kernels<Float16>() {
  return kAbnKernelsOf<Float16>;
}

}  // namespace palimpsest::kernels::cuda
