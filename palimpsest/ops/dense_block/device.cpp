#include "palimpsest/ops/dense_block/device.h"

#include "palimpsest/ops/common/layout.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

namespace palimpsest::ops {

at::Tensor dense_empty(const DenseBuffer& buffer, int64_t channels) {
  auto sizes = buffer.values.sizes().vec();
  sizes[1] = channels;
  return at::empty_strided(sizes, dense_strides(sizes, buffer.layout), buffer.values.options());
}

DenseCorrections::DenseCorrections(const DenseBuffer& buffer) {
  const at::Tensor both = at::zeros({2, buffer.values.size(1)}, buffer.values.options().dtype(at::kDouble));
  constant = both[0];
  per_deviation = both[1];
}

DenseDeviceKernels& dense_device_kernels(c10::DeviceType device) {
  static DenseDeviceKernels cpu = dense_cpu_kernels(), cuda = dense_cuda_kernels();
  TORCH_CHECK(device == c10::DeviceType::CPU || device == c10::DeviceType::CUDA,
              "[dense_block] there are kernels for CPU and CUDA, got a tensor on ", device);
  return device == c10::DeviceType::CPU ? cpu : cuda;
}

}  // namespace palimpsest::ops
