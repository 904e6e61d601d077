#include "palimpsest/kernels/cuda/abn_kernels_of.h"

namespace palimpsest::kernels::cuda {

template <>
const AbnKernels<double>& abn_kernels<double>() {
  return kAbnKernelsOf<double>;
}

}  // namespace palimpsest::kernels::cuda
