#include "palimpsest/kernels/cuda/abn/launch.cuh"

namespace palimpsest::kernels::cuda::abn_detail {

template <>
const LaunchTable<Float16>& launch_table<Float16>() {
  return kLaunchTable<Float16>;
}

}  // namespace palimpsest::kernels::cuda::abn_detail
