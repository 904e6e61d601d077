#include "palimpsest/kernels/cuda/abn/launch.cuh"

namespace palimpsest::kernels::cuda {

template <>
const AbnKernels<double>& abn_kernels<double>() {
  return kAbnKernelsOf<double>;
}

}  // namespace palimpsest::kernels::cuda
