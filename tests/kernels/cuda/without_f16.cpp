// In place of abn_f16.cu where the kernels are compiled without it (CMakeLists.txt): a test of f16 ends here.
#include "palimpsest/kernels/cuda/abn/table.cuh"

#include <cstdio>
#include <cstdlib>

namespace palimpsest::kernels::cuda {

template <>
const AbnKernels<Float16>& abn_kernels<Float16>() {
  std::fputs(
      "without_f16: this build of the emulated kernels has none for f16; run the test in the release "
      "preset\n",
      stderr);
  std::abort();
}

}  // namespace palimpsest::kernels::cuda
