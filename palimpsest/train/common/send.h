#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace palimpsest::train {

/// Returns the tensor on the device. The copy of a CPU tensor starts from pinned memory on the current stream, and
/// the host does not wait for it. A tensor that is there already, or undefined, is returned as it is.
at::Tensor send(const at::Tensor& tensor, c10::Device device);

}  // namespace palimpsest::train
