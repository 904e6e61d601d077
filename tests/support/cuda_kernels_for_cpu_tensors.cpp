// For programs whose operators run CUDA kernels over CPU tensors: the emulator executes them.
#include "palimpsest/ops/common/backend.h"
#include "tests/support/main.h"

namespace palimpsest::testing {
namespace {

const Prepare kCudaKernelsForCpuTensors{[] {
  ops::run_cpu_tensors_on(ops::Backend::kCuda);
  return 0;
}};

}  // namespace
}  // namespace palimpsest::testing
