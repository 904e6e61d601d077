// Replaces abn/f16.cu in the sanitizer builds (CMakeLists.txt), whose tests leave f16 out.
#include "palimpsest/kernels/cuda/abn/table.cuh"

#include <cstdio>
#include <cstdlib>

namespace palimpsest::kernels::cuda::abn_detail {

template <>
const LaunchTable<Float16>& launch_table<Float16>() {
  std::fputs("[without_f16] this build has no emulated kernels for f16: run the test in the release preset\n",
             stderr);
  std::abort();
}

}  // namespace palimpsest::kernels::cuda::abn_detail
