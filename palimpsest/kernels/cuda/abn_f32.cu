#include "palimpsest/kernels/cuda/abn_kernels_of.h"

namespace palimpsest::kernels::cuda {

template <>
const AbnKernels<float>& abn_kernels<float>() {
  return kAbnKernelsOf<float>;
}

}  // namespace palimpsest::kernels::cuda
