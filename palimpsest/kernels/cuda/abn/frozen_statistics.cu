#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/cuda/abn.h"
#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/vector16.cuh"

namespace palimpsest::kernels::cuda {
namespace {

/// Grid: one thread per channel.
template <class S>
__global__ void __launch_bounds__(kThreads)
    frozen_statistics_kernel(int64_t channels, double eps, const S* running_mean, const S* running_var,
                             double* mean, double* inv_std) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= channels) return;
  Stored<S, 1> m, v;
  m.load(running_mean + c);
  v.load(running_var + c);
  mean[c] = static_cast<double>(m.value(0));
  inv_std[c] = 1 / sqrt(static_cast<double>(v.value(0)) + eps);
}

}  // namespace

void abn_frozen_statistics(DType dtype, int64_t channels, double eps, const void* running_mean,
                           const void* running_var, double* mean, double* inv_std, Stream stream) {
  if (channels == 0) return;
  const LaunchShape shape{.blocks = ceil_divide(channels, kThreads), .threads = kThreads};
  dispatch_float(dtype, [&]<class S>() {
    launch("abn_frozen_statistics", shape, stream, frozen_statistics_kernel<S>, channels, eps,
           static_cast<const S*>(running_mean), static_cast<const S*>(running_var), mean, inv_std);
  });
}

}  // namespace palimpsest::kernels::cuda
