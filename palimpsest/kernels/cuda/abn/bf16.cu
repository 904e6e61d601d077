#include "palimpsest/kernels/cuda/abn/launch.cuh"

namespace palimpsest::kernels::cuda::abn_detail {

template <>
const LaunchTable<BFloat16>& launch_table<BFloat16>() {
  return kLaunchTable<BFloat16>;
}

}  // namespace palimpsest::kernels::cuda::abn_detail
