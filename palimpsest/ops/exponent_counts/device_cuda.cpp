#include "palimpsest/ops/exponent_counts/device_cuda.h"

#include "palimpsest/kernels/cuda/exponent_histogram.h"
#include "palimpsest/ops/common/cuda_call.h"
#include "palimpsest/ops/common/dtype.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace palimpsest::ops {

kernels::ExponentHistogram exponent_counts_cuda(const at::Tensor& values) {
  const CudaCall call(values);
  const at::Tensor on_device = at::zeros({kernels::kExponentBins}, values.options().dtype(at::kLong));
  kernels::cuda::exponent_histogram(dtype_of("exponent_counts", values), values.const_data_ptr(),
                                    values.numel(), on_device.mutable_data_ptr<int64_t>(), call.stream());
  const at::Tensor on_host = on_device.cpu();
  kernels::ExponentHistogram counts{};
  std::copy_n(on_host.const_data_ptr<int64_t>(), counts.size(), counts.begin());
  return counts;
}

}  // namespace palimpsest::ops
