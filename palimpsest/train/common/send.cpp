#include "palimpsest/train/common/send.h"

#include <ATen/ATen.h>

namespace palimpsest::train {

at::Tensor send(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  const at::Tensor pinned = tensor.is_cpu() && !tensor.is_pinned() ? tensor.pin_memory() : tensor;
  return pinned.to(device, /*non_blocking=*/true);
}

}  // namespace palimpsest::train
