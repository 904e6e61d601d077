#include "palimpsest/kernels/cuda/abn/launch.cuh"

namespace palimpsest::kernels::cuda {

template <>
const AbnKernels<float>& abn_kernels<float>() {
  return kAbnKernelsOf<float>;
}

}  // namespace palimpsest::kernels::cuda
