#include "palimpsest/kernels/cuda/abn/launch.cuh"

namespace palimpsest::kernels::cuda {

template <>
const AbnKernels<BFloat16>& abn_kernels<BFloat16>() {
  return kAbnKernelsOf<BFloat16>;
}

}  // namespace palimpsest::kernels::cuda
