#pragma once

#include "palimpsest/nn/strategy.h"
#include "palimpsest/ops/max_pool.h"

#include <ATen/ops/max_pool2d.h>

namespace palimpsest::nn {

/// Max pooling by strategy; values and gradients are the same. `standard` runs libtorch's operator, which
/// saves its input and eight bytes per output. The other strategies save one byte per output. x: (N, C, H, W)
/// or (C, H, W); the arguments are those of ops::max_pool2d.
inline at::Tensor max_pool2d(const at::Tensor& x, Strategy strategy, at::IntArrayRef kernel_size,
                             at::IntArrayRef stride = {}, at::IntArrayRef padding = 0,
                             bool ceil_mode = false) {
  return strategy == Strategy::kStandard ? at::max_pool2d(x, kernel_size, stride, padding, 1, ceil_mode)
                                         : ops::max_pool2d(x, kernel_size, stride, padding, 1, ceil_mode);
}

}  // namespace palimpsest::nn
