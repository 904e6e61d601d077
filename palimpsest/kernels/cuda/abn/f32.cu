#include "palimpsest/kernels/cuda/abn/launch.cuh"

namespace palimpsest::kernels::cuda::abn_detail {

template <>
const LaunchTable<float>& launch_table<float>() {
  return kLaunchTable<float>;
}

}  // namespace palimpsest::kernels::cuda::abn_detail
