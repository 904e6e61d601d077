#include "palimpsest/ops/dense_block/device.h"

#include "palimpsest/ops/common/backend.h"
#include "palimpsest/ops/common/layout.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

namespace palimpsest::ops::dense_block_detail {

at::Tensor empty_channels(const Buffer& buffer, int64_t channels) {
  auto sizes = buffer.values.sizes().vec();
  sizes[1] = channels;
  return at::empty_strided(sizes, contiguous_strides(sizes, buffer.layout), buffer.values.options());
}

Corrections::Corrections(const Buffer& buffer) {
  const at::Tensor both = at::zeros({2, buffer.values.size(1)}, buffer.values.options().dtype(at::kDouble));
  constant = both[0];
  per_deviation = both[1];
}

const Device& device_for(const at::Tensor& like) {
  return backend_of("dense_block", like) == Backend::kCuda ? cuda_device() : cpu_device();
}

}  // namespace palimpsest::ops::dense_block_detail
