#include "palimpsest/kernels/cuda/abn/launch.cuh"

namespace palimpsest::kernels::cuda::abn_detail {

template <>
const LaunchTable<double>& launch_table<double>() {
  return kLaunchTable<double>;
}

}  // namespace palimpsest::kernels::cuda::abn_detail
